"""The landing page: whole, safe, and about what an operator looks for."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from tests.serve.worlds import NOW, decision, finding, snapshot
from tuner.serve.pages import MAX_FINDINGS, Pages
from tuner.serve.snapshot import PoolStatus, Snapshot

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
        "chat · vllm · mode observe", "1 up", "1 down", "1–8: 4, 9–64: 2, 65–256: 0", "tokens in flight",
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


def test_a_flood_of_findings_stays_readable() -> None:
    """The grave ones come first, and the rest is counted."""
    many = [finding(f"code_{i}") for i in range(MAX_FINDINGS + 5)]
    grave = replace(finding("the_worst"), severity="critical")
    page = _Page(Pages().landing(snapshot(findings=(*many, grave), decision=decision())))
    assert "the_worst" in page.text
    assert "6 more" in page.text
