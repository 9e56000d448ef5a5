"""The rules of the house: which package may import which, and what the pure core may touch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tuner"

NOUNS = {"fleet", "theory"}
ALLOWED: dict[str, set[str]] = {
    "_exceptions": set(),
    "fleet": set(),
    "theory": set(),
    "quantities": set(),
    "vocabulary": set(),
    "addresses": set(),
    "config": {"fleet", "theory", "quantities", "addresses"},
    "observe": NOUNS | {"vocabulary", "addresses"},
    "engines": NOUNS | {"vocabulary"},
    "store": NOUNS,
    "fit": NOUNS,
    "plan": NOUNS | {"fit"},
    "recall": NOUNS,
    "cycle": NOUNS | {"fit", "plan"},
    "contract": NOUNS | {"fit", "plan", "cycle"},
    "serve": NOUNS | {"contract", "fit", "plan", "cycle", "observe", "engines", "store", "quantities"},
    "simulate": {"quantities"},
}
"""Package -> packages of ours that it may import besides itself and ``_exceptions``."""

PURE = ("fleet", "theory", "fit", "plan", "cycle", "contract", "recall")
IMPURE_MODULES = {
    "asyncio", "datetime", "glob", "gzip", "http", "io", "os", "pathlib", "random", "requests", "shutil",
    "socket", "sqlalchemy", "sqlite3", "subprocess", "sys", "tempfile", "threading", "time", "urllib",
}  # fmt: skip
"""Clock, network, files, database and hidden randomness: arguments in the pure core, never imports."""


def _area(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def _sources(*areas: str) -> list[Path]:
    return [path for path in sorted(PACKAGE.rglob("*.py")) if not areas or _area(path) in areas]


def _imports(path: Path) -> set[str]:
    """Return dotted names imported anywhere in a file, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            module = node.module or ""
            names.add(module)
            if module == "tuner":
                names.update(f"tuner.{alias.name}" for alias in node.names)
    return names


def _areas_imported(path: Path) -> set[str]:
    return {name.split(".")[1] for name in _imports(path) if name.startswith("tuner.")}


@pytest.mark.parametrize("area", sorted(ALLOWED))
def test_arrows_run_one_way(area: str) -> None:
    """A package imports only the packages that the house allows it."""
    for path in _sources(area):
        foreign = _areas_imported(path) - ALLOWED[area] - {area, "_exceptions"}
        assert foreign == set(), f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


def test_the_rules_cover_every_package() -> None:
    """A new package needs a rule here or is wiring: cli, daemon, and what may import all."""
    free = {"__init__", "__main__", "cli", "daemon", "rollout", "alert", "report", "pool_settings"}
    assert {_area(path) for path in _sources()} - free <= set(ALLOWED)


@pytest.mark.parametrize("area", PURE)
def test_the_core_is_pure(area: str) -> None:
    """No module of the core imports a clock, the network, files, a database or hidden randomness."""
    for path in _sources(area):
        roots = {name.split(".")[0] for name in _imports(path)}
        assert roots & IMPURE_MODULES == set(), path.relative_to(ROOT)
        assert "np.random.seed" not in path.read_text()


@pytest.mark.parametrize("folder", ["tuner", "tests", "bench"])
def test_files_are_rooms_not_halls(folder: str) -> None:
    """No source file grows past 420 lines."""
    long = {
        str(path.relative_to(ROOT)): lines
        for path in (ROOT / folder).rglob("*.py")
        if (lines := path.read_text().count("\n")) > 420
    }
    assert long == {}


def test_every_test_says_what_it_guards() -> None:
    """Each test function carries a docstring."""
    silent = [
        f"{path.relative_to(ROOT)}::{node.name}"
        for path in sorted((ROOT / "tests").rglob("test_*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and not ast.get_docstring(node)
    ]
    assert silent == []
