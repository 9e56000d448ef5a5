"""The marks of the reference against what the daemon reads, setting by setting.

``tests/cli/test_settings.py`` does the same for a replay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from tuner.config import Config, load_config
from tuner.config.obeyed import DAEMON, OBEYED, used_by
from tuner.config.section import Section
from tuner.config.structure import section_of
from tuner.daemon.parts import RealParts
from tuner.daemon.process import Daemon, Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import pytest
    from pydantic import BaseModel

EVERYTHING = """\
store: {{url: 'sqlite:///{folder}/tuner.db'}}
sources: {{prometheus: [{{name: main, url: 'http://127.0.0.1:1'}}]}}
pools:
  - name: a
    engine: vllm
    mode: advise
    engines: {{static: ['http://127.0.0.1:1'], prometheus: {{source: main, selector: 'job="x"'}}}}
    admin: {{token_file: '{folder}/token'}}
    gpu: {{exporters: ['http://127.0.0.1:1'], prometheus: {{source: main, selector: g}}, join: {{a: b}}}}
    hardware: {{name: x, flops: 1e15, bandwidth: 3e12}}
    model: {{params: 70e9}}
    drafter: {{method: eagle3}}
    startup_schedule: [[1, 8, 4]]
web: {{listen: '127.0.0.1:0'}}
"""
"""Every section is there, and nobody answers at port 1 of loopback."""


def _leaves(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the dotted name of every setting, with the model and the field behind it."""
    for key, field in model.model_fields.items():
        section, is_list = section_of(field.annotation)
        name = f"{prefix}.{key}".lstrip(".")
        if section is not None:
            yield from _leaves(section, name + ("[]" if is_list else ""))
        else:
            yield name, (model.__name__, key)


def _noting(model: type[BaseModel], read: set[tuple[str, str]]) -> Callable[[BaseModel, str], object]:
    """Return a ``__getattribute__`` that notes which settings are read."""
    plain = model.__getattribute__

    def noted(section: BaseModel, name: str) -> object:
        if name in type(section).model_fields:
            read.add((type(section).__name__, name))
        return plain(section, name)

    return noted


def test_the_daemon_reads_what_the_reference_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through one run of every job the daemon reads the settings marked as its own, and no others."""
    (tmp_path / "token").write_text("x")
    path = tmp_path / "tuner.yaml"
    path.write_text(EVERYTHING.format(folder=tmp_path))
    config = load_config(path)
    read: set[tuple[str, str]] = set()
    for model in (Section, Config):
        monkeypatch.setattr(model, "__getattribute__", _noting(model, read))

    daemon = Daemon(config, Options(path), RealParts, structlog.get_logger())
    try:
        for job in daemon.service.functions.values():
            job(daemon.clock.now())
    finally:
        daemon.leader.release()
        daemon.service.wiring.scraper.close()
        if daemon.leader.store is not None:
            daemon.leader.store.close()

    assert {name for name, key in _leaves(Config) if key in read} == DAEMON - {"pools", "sources.prometheus"}


def test_marks() -> None:
    """A section is used by whoever uses a setting in it, and a replay's settings are the daemon's too."""
    assert OBEYED <= DAEMON
    assert [used_by(name) for name in ("pools", "pools[].guard", "pools[].guard.tie")] == [
        "replay and daemon"
    ] * 3
    assert [used_by(name) for name in ("web", "scrape.max_body", "pools[].engines")] == ["daemon"] * 3
    assert [used_by(name) for name in ("alerting", "report.at", "pools[].explore")] == ["not yet"] * 3
