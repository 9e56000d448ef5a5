"""The daemon's log: one event a line on stderr, logfmt or JSON, no credentials.

The journal adds time and host of its own; the time here is for those who read files.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import MutableMapping

Level = Literal["debug", "info", "warning", "error"]
Format = Literal["logfmt", "json"]
LEVELS: tuple[Level, ...] = ("debug", "info", "warning", "error")
FORMATS: tuple[Format, ...] = ("logfmt", "json")

_USERINFO = re.compile(r"(?<=://)[^/\s@]*@")
_SECRET = re.compile(
    r"(?i)(?<![/\w.-])((?:[a-z]+[-_])*(?:authorization|api[-_]?key|password|passwd|token|secret))"
    r"(\s*[:=]\s*|[\"']\s*:\s*)(?:(?:bearer|basic)\s+)?(\"[^\"]*\"|'[^']*'|[^\s,;&'\"}]+)"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}")
_HIDDEN = "<hidden>"


class Logger(Protocol):
    """What parts of the daemon log with: an event in words, and its facts by name."""

    def debug(self, event: str, **facts: object) -> object:
        """Log what only a developer wants to know."""

    def info(self, event: str, **facts: object) -> object:
        """Log what happens in the course of things."""

    def warning(self, event: str, **facts: object) -> object:
        """Log what somebody should look at some time."""

    def error(self, event: str, **facts: object) -> object:
        """Log what somebody should look at soon."""


def redact(text: str) -> str:
    """Return ``text`` without user names and passwords in URLs, tokens and values of secret headers."""
    text = _USERINFO.sub("", text)
    text = _SECRET.sub(rf"\1\2{_HIDDEN}", text)
    return _SCHEME.sub(rf"\1 {_HIDDEN}", text)


def _redacted(_logger: object, _name: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Redact every text of an event; a line break would make two events of one."""
    for key, value in event.items():
        if isinstance(value, bool | int | float) or value is None:
            continue
        event[key] = " ".join(redact(str(value)).split())
    return event


def configure(level: Level, form: Format) -> Logger:
    """Send the events of the daemon and of its libraries to stderr, and return the daemon's logger."""
    import structlog  # noqa: PLC0415 - 40 ms that only the daemon pays

    renderer: Any = (
        structlog.processors.JSONRenderer(ensure_ascii=False)
        if form == "json"
        else structlog.processors.LogfmtRenderer(key_order=["ts", "level", "event"], drop_missing=True)
    )
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
        _redacted,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    # Its warnings tell of runs that are counted in metrics; each run is told at level info.
    logging.getLogger("apscheduler").setLevel(logging.ERROR)
    logger: Logger = structlog.get_logger()
    return logger
