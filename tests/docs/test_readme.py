"""The README's commands are run, and its output is what they print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from tuner.cli import VERBS, tuner

ROOT = Path(__file__).resolve().parent.parent.parent
README = (ROOT / "README.md").read_text()


def _examples() -> list[tuple[str, list[str]]]:
    """Commands of the console blocks with the lines printed under them."""
    out: list[tuple[str, list[str]]] = []
    for block in re.findall(r"```console\n(.*?)```", README, flags=re.DOTALL):
        for line in block.splitlines():
            if line.startswith("$ "):
                out.append((line[2:], []))
            else:
                out[-1][1].append(line)
    return out


EXAMPLES = [(command, shown) for command, shown in _examples() if command.startswith("tuner ")]


def _matches(shown: list[str], printed: list[str]) -> bool:
    """Compare line by line; ``...`` stands for any number of lines."""
    pattern = "".join(r"(?:.*\n)*" if line == "..." else re.escape(line) + r"\n" for line in shown)
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None


def test_there_are_examples() -> None:
    """The blocks are found: a README without them would pass every other test."""
    assert len(EXAMPLES) >= 5


@pytest.mark.parametrize(("command", "shown"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_command_prints_what_the_readme_shows(
    command: str, shown: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each ``tuner`` command of the README prints the lines under it."""
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(tuner, shlex.split(command)[1:], catch_exceptions=False)
    assert result.exit_code == 0
    assert _matches(shown, result.stdout.splitlines()), result.stdout


def test_the_command_is_on_the_path_before_it_is_used() -> None:
    """Who copies block after block has ``tuner`` on the path by the first line that needs it."""
    assert 0 < README.index('export PATH="$PWD/.venv/bin:$PATH"') < README.index("\n$ tuner ")


def test_the_status_names_every_verb() -> None:
    """What this release holds is said before anything else, and a new verb is added there."""
    status = README.partition("## Status")[2].partition("\n## ")[0]
    assert README.index("## Status") < README.index("```")
    for verb in VERBS:
        assert f"`{verb}`" in status or f"`tuner {verb}`" in status, verb


def test_make_targets_exist() -> None:
    """Each ``make`` target that the README names is in the Makefile's help."""
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"`?make ([a-z-]+)`?", README):
        assert re.search(rf"^{target}:.*## ", makefile, flags=re.MULTILINE), target


@pytest.mark.parametrize(
    "page", [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"], ids=lambda p: p.name
)
def test_links_lead_somewhere(page: Path) -> None:
    """Relative links of every page point at files that exist."""
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target
