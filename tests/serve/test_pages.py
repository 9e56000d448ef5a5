"""The landing page: whole, safe, and about what an operator looks for."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from tests.serve.worlds import NOW, decision, finding, snapshot
from tuner.fleet import NotEnoughData, Schedule
from tuner.serve.pages import MAX_FINDINGS, Pages
from tuner.serve.snapshot import PoolStatus, ScheduleStatus, Snapshot

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx2

    Served = Callable[..., httpx2.Client]


class _Page(HTMLParser):
    """Collects tags, links and text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "link", "br"}:
            self.open.append(tag)
        self.links += [value or "" for name, value in attrs if name in {"href", "src"}]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        """All text, blanks as one."""
        return " ".join(" ".join(self.words).split())


def test_the_page_tells_each_pool(served: Served) -> None:
    """What runs, what would be best, what it rests on, and what cannot be said."""
    answer = served().get("/")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    page = _Page(answer.text)
    assert page.open == []
    for part in (
        "chat · vllm · mode observe", "1 up", "1 down", "1-8: 4, 9-64: 2, 65-256: 0", "tokens in flight",
        "cannot say: one draft length only", "no cycle has looked at this pool yet", "source_down", "leader",
    ):  # fmt: skip
        assert part in page.text


def test_every_link_leads_somewhere(served: Served) -> None:
    """Links are relative, so that they hold behind a path prefix, and all are answered."""
    client = served()
    links = _Page(client.get("/").text).links
    assert len(links) > 12
    for link in links:
        assert not re.match(r"/|\w+:", link)
        assert client.get(f"/{link}").status_code == 200, link


def test_nothing_comes_from_elsewhere_and_no_script_runs(served: Served) -> None:
    """The style is the only one that the policy allows, by its hash; there is no script."""
    answer = served().get("/")
    page = _Page(answer.text)
    assert {"script", "link", "img", "iframe", "form"} & set(page.tags) == set()
    assert "http" not in answer.text.replace("http-equiv", "")
    found = re.search(r"<style>(.*?)</style>", answer.text, re.DOTALL)
    assert found is not None
    digest = base64.b64encode(hashlib.sha256(found[1].encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in answer.headers["content-security-policy"]
    assert "light dark" in found[1]
    assert len(answer.content) < 40_000


def test_what_others_wrote_is_text() -> None:
    """A pool, an error or a finding cannot put markup into the page."""
    evil = '<script>alert(1)</script>"><img src=x onerror=y>'
    shown = snapshot(
        pools=(PoolStatus(evil, "observe", evil, 1, 0),),
        not_ready=(evil,),
        findings=(replace(finding(), message=evil, code=evil),),
        version=evil,
    )
    page = _Page(Pages().landing(shown))
    assert {"script", "img"} & set(page.tags) == set()
    assert evil in page.text


def test_a_page_before_anything_is_known() -> None:
    """The first seconds of a daemon have a page too."""
    page = _Page(Pages().landing(Snapshot(at=NOW, started_at=NOW, version="1")))
    assert "not ready: starting" in page.text
    assert "No pool is known yet." in page.text
    assert "Nothing noticed." in page.text


def test_what_runs_is_what_engines_say() -> None:
    """A proposal is no schedule that runs: the row is the engines' word, or says that there is none."""
    table = Schedule.from_ranges([[1, 256, 3]])
    proposed = ScheduleStatus("chat", table.version, "proposed", table, NOW)
    page = _Page(Pages().landing(snapshot(schedules=(proposed,))))
    assert "engines run not known: no engine was asked" in page.text
    assert f"proposed 1-256: 3 (version {table.version})" in page.text
    runs = {("chat", "e0"): Schedule.from_ranges([[1, 64, 2]])}
    assert (
        "engines run 1-64: 2 (on 1 of 2); not known of 1"
        in _Page(Pages().landing(snapshot(running=runs))).text
    )
    runs[("chat", "e1")] = runs["chat", "e0"]
    assert "engines run 1-64: 2 active" in _Page(Pages().landing(snapshot(running=runs))).text
    without = {**runs, ("chat", "e1"): None}
    assert "no table (on 1 of 2)" in _Page(Pages().landing(snapshot(running=without))).text


def test_what_is_not_known_yet_says_so_once() -> None:
    """Before a cycle no cell is empty, and a reason that holds for several rows is told once."""
    text = Pages().landing(snapshot(decision=None))
    assert "<td></td>" not in text
    assert "acceptance, crossover, predicted speed-up not known yet" in _Page(text).text
    reason = NotEnoughData("some windows are missing")
    chat = replace(decision().pools[0], step_time=reason, speedup=reason)
    text = _Page(Pages().landing(snapshot(decision=replace(decision(), pools=(chat,))))).text
    assert "crossover, predicted speed-up cannot say: some windows are missing" in text


def test_findings_name_their_pools_and_equal_ones_are_one() -> None:
    """One fault of three pools is one line that names the three; another text is another line."""
    found = (
        finding("thin_data", pool="chat", engine="e0"),
        finding("thin_data", pool="chat", engine="e1"),
        finding("thin_data", pool="thin"),
        finding("alone"),
    )
    page = _Page(Pages().landing(snapshot(findings=found))).text
    assert "thin_data, pool chat (engine e0; engine e1), pool thin: thin_data was noticed" in page
    assert page.count("thin_data was noticed") == 1
    assert "alone: alone was noticed" in page
    many = tuple(finding("thin_data", pool=f"p{i}") for i in range(9))
    assert "pool p4, 4 more: thin_data" in _Page(Pages().landing(snapshot(findings=many))).text


def test_a_flood_of_findings_stays_readable() -> None:
    """The grave ones come first, and the rest is counted."""
    many = [finding(f"code_{i}") for i in range(MAX_FINDINGS + 5)]
    grave = replace(finding("the_worst"), severity="critical")
    page = _Page(Pages().landing(snapshot(findings=(*many, grave), decision=decision())))
    assert "the_worst" in page.text
    assert "6 more" in page.text
