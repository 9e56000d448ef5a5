"""``docs/findings.md`` lists every finding that the source can make, with its severity, and no others."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "findings.md"
SEVERITIES = ("info", "warning", "critical")
ROWS = re.findall(
    r"^\| `([a-z0-9_]+)` \| ([a-z ]+) \| (.+?) \| (.+?) \|$", PAGE.read_text(), flags=re.MULTILINE
)


CODE = re.compile(r"[a-z][a-z0-9_]*")
NO_CODES = {*SEVERITIES, "debug", "ok", "summary", "tuner_build_info", "tuner_schedule_info"}
"""What stands before the word of a severity and is something else: levels of the log, kinds of metrics."""

Place = tuple[ast.expr, ast.expr | None]
"""An expression that is a code, and what stands as its severity."""


def _texts(node: ast.expr | None) -> list[str]:
    """The strings that an expression may be: a literal, or either side of a choice."""
    if isinstance(node, ast.IfExp):
        return _texts(node.body) + _texts(node.orelse)
    return [node.value] if isinstance(node, ast.Constant) and isinstance(node.value, str) else []


def _pairs(code: ast.expr, severity: ast.expr | None) -> Iterator[tuple[str, set[str]]]:
    """Codes with their severities; two choices by one condition go side by side."""
    if isinstance(code, ast.IfExp) and isinstance(severity, ast.IfExp):
        yield from _pairs(code.body, severity.body)
        yield from _pairs(code.orelse, severity.orelse)
        return
    for text in _texts(code):
        yield text, set(_texts(severity)) & set(SEVERITIES)


def _takers(trees: list[ast.Module]) -> dict[str, int]:
    """Functions that are handed a code, with the place of that argument; ``Finding`` is one."""
    takers = {"Finding": 0}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef):
            arguments = [argument for argument in node.args.args if argument.arg != "self"]
            for place, argument in enumerate(arguments):
                if argument.arg == "code" and ast.unparse(argument.annotation or argument) == "str":
                    takers[node.name] = place
    return takers


def _before_severities(listed: list[ast.expr]) -> Iterator[Place]:
    """What stands before a severity, in a row of a table or among arguments."""
    for code, severity in pairwise(listed):
        if set(_texts(severity)) & set(SEVERITIES):
            yield code, severity


def _of_call(call: ast.Call, takers: dict[str, int]) -> Iterator[Place]:
    yield from _before_severities(call.args)
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if name in takers and len(call.args) > takers[name]:
        yield call.args[takers[name]], None
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "code" in given:
        yield given["code"], given.get("severity")


def _of_function(function: ast.FunctionDef) -> Iterator[Place]:
    """What a function returns first, where its docstring says that this is a code."""
    if (ast.get_docstring(function) or "").startswith("Return code"):
        for node in ast.walk(function):
            if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
                yield node.value.elts[0], None


def _codes() -> dict[str, set[str]]:
    """Codes in the source, however they are written, with the severities that stand beside them."""
    trees = [ast.parse(path.read_text()) for path in sorted((ROOT / "tuner").rglob("*.py"))]
    takers = _takers(trees)
    places: list[Place] = []
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Call):
            places += _of_call(node, takers)
        elif isinstance(node, ast.Tuple):
            places += _before_severities(node.elts)
        elif isinstance(node, ast.FunctionDef):
            places += _of_function(node)
    found: dict[str, set[str]] = {}
    for place in places:
        for code, severities in _pairs(*place):
            if CODE.fullmatch(code) and code not in NO_CODES:
                found.setdefault(code, set()).update(severities)
    return found


def test_every_code_of_the_source_is_explained() -> None:
    """A new finding needs a row: what it means and what to do."""
    assert set(_codes()) - {code for code, *_ in ROWS} == set()


def test_every_code_of_the_page_is_in_the_source() -> None:
    """The page explains nothing that cannot occur, and nothing twice."""
    codes = [code for code, *_ in ROWS]
    assert set(codes) - set(_codes()) == set()
    assert len(codes) == len(set(codes))


def test_severities_of_the_page_are_those_of_the_source() -> None:
    """Where the source names a severity beside a code, the page names it too."""
    severities = _codes()
    wrong = {
        code: (told, severities[code])
        for code, told, *_ in ROWS
        if not severities.get(code, set()) <= set(told.split(" or "))
    }
    assert wrong == {}


def test_the_source_is_read() -> None:
    """The collector finds codes of every way in which they are written."""
    codes = _codes()
    for code in (
        "scrape_duplicate",
        "engine_restart",
        "ignored",
        "sweep_hole",
        "k_confounded",
        "no_batch_schedule",
    ):
        assert code in codes
