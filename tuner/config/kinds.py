"""Kinds of settings: how a duration, a count, a URL or a list of draft lengths is read and refused.

Validators raise ``ValueError`` with a message of the form ``problem: remedy``; the loader adds file,
line and field. No message repeats a value that may hold a secret.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, TypeVar
from urllib.parse import parse_qsl
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field

from tuner._exceptions import InputError, ScheduleError
from tuner.addresses import check_template, split_any, split_url
from tuner.fleet import Schedule
from tuner.quantities import parse_duration, parse_number

T = TypeVar("T")

LARGEST_COUNT = 1e24
"""Above any count or rate of a machine, below where products overflow."""
LARGEST_BATCH = 1_000_000
"""Requests per step taken for real; engines run at most a few thousand."""
LARGEST_DRAFT_LEN = 1024
"""The longest block the theory takes for real, see :data:`tuner.theory.acceptance.MAX_DRAFT_LEN`."""
LARGEST_NAME = 100
LARGEST_BODY = 16 * 2**20
"""Longest body that the parser takes, see :data:`tuner.observe.exposition.MAX_BODY_BYTES`."""
SMALLEST_BODY = 64 * 2**10
"""A body of vLLM has 55 KiB: less would refuse every engine."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
_WORD = re.compile(r"[a-z][a-z0-9_-]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})")
_SIZE = re.compile(r"([0-9]{1,12})(KiB|MiB)?", re.ASCII)
_BYTES = {"": 1, "KiB": 2**10, "MiB": 2**20}
_SECRET_HEADER = re.compile(r"auth|token|key|secret|passw|cookie|credential|session", re.IGNORECASE)
_SECRET_VALUE = re.compile(r"\s*(?:(?:bearer|basic|digest|token|negotiate)\s+\S|eyJ[\w-]+\.)", re.IGNORECASE)
"""Credentials of RFC 9110, 11.4, and web tokens (RFC 7519), under whatever name they are sent."""
_SECRET_QUERY = re.compile(r"pass|secret|token|key", re.IGNORECASE)
_LARGEST_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Kind:
    """What the reference calls a setting's type."""

    text: str


def _adapt(parse: Callable[[str], float]) -> Callable[[object], object]:
    """Return a validator that reads text with ``parse`` and lets other values through."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            return parse(value)
        except InputError as error:
            raise ValueError(str(error)) from None

    return read


def _duration(value: object) -> object:
    """Read a duration; a bare number is refused, since nobody knows its unit."""
    if isinstance(value, int | float) and not isinstance(value, bool) and value != 0:
        raise ValueError(f"has no unit: write {value}s, or m, h, d, ms")
    return _adapt(parse_duration)(value)


def _no_bool(value: object) -> object:
    """Refuse ``true`` where a number is wanted; Python would take it for 1."""
    if isinstance(value, bool):
        raise ValueError("is true or false, not a number: write a number")  # noqa: TRY004 - pydantic's contract
    return value


def _pattern(pattern: re.Pattern[str], remedy: str) -> Callable[[str], str]:
    """Return a validator for short text that matches ``pattern`` whole."""

    def check(value: str) -> str:
        if len(value) > LARGEST_NAME or not pattern.fullmatch(value):
            raise ValueError(f"is not a valid name: {remedy}")
        return value

    return check


def _told(check: Callable[[str], T]) -> Callable[[str], T]:
    """Return ``check`` with its refusal in the form that pydantic takes."""

    def told(value: str) -> T:
        try:
            return check(value)
        except InputError as error:
            raise ValueError(str(error)) from None

    return told


def _http_url(url: str) -> str:
    """Check an HTTP address without secrets, query or fragment; a trailing slash is dropped."""
    parts = split_url(url)
    if parts.query or parts.fragment:
        raise InputError("has a query or fragment: give the address and path only")
    return url.rstrip("/")


def _template(template: str) -> str:
    """Check a URL with placeholders for an engine's address and labels."""
    check_template(template)
    return template


def _url_path(path: str) -> str:
    """Check the path of a URL."""
    if not path.startswith("/") or set(path) & set("?#") or not path.isprintable() or " " in path:
        raise ValueError("is not a path: write it as in /metrics")
    return path


def _size(value: object) -> object:
    """Read a number of bytes, plain or with KiB or MiB."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value)
    if found is None:
        raise ValueError("is not a size: write bytes, or 512KiB, 16MiB")
    return int(found[1]) * _BYTES[found[2] or ""]


def format_size(value: int) -> str:
    """Return a number of bytes as the file would hold it."""
    for unit in ("MiB", "KiB"):
        if value and value % _BYTES[unit] == 0:
            return f"{value // _BYTES[unit]}{unit}"
    return str(value)


def _switch(value: object) -> object:
    """Read ``true`` or ``false``; pydantic alone would take ``on``, ``yes`` and 1 as well."""
    if isinstance(value, str) and value.lower() in {"true", "false"}:
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ValueError("is neither true nor false: write true or false")  # noqa: TRY004 - pydantic's contract
    return value


def _user_name(value: str) -> str:
    """Check a user name of basic authentication, where a colon would end it (RFC 7617)."""
    if not value or ":" in value or not value.isprintable():
        raise ValueError("is not a user name: write it without colons; the password stands in a file")
    return value


def _label_map(labels: dict[str, str]) -> dict[str, str]:
    """Check pairs of labels, at least one."""
    if not labels:
        raise ValueError("is empty: say which labels are equal, as in {pod: exported_pod}")
    if not all(_LABEL.fullmatch(name) for pair in labels.items() for name in pair):
        raise ValueError("has a name that is no label: use letters, digits and _, as Prometheus labels")
    return labels


def _ranges(rows: object) -> object:
    """Check a table of batch sizes and draft lengths."""
    if not isinstance(rows, list | tuple) or not all(isinstance(row, list | tuple) for row in rows):
        raise ValueError("is not a table: write [[1, 8, 4], [9, 64, 2]]")
    try:
        return tuple(Schedule.from_ranges(rows).ranges)
    except ScheduleError as error:
        text = str(error)
        raise ValueError(text if ": " in text else f"{text}: write [first, last, K] in each row") from None


def _store_url(url: str) -> str:
    """Check a database address of the two kinds there are, without a password in it."""
    parts = split_any(url)
    if parts.password is not None or any(_SECRET_QUERY.search(name) for name, _ in parse_qsl(parts.query)):
        raise InputError("holds a password: put it in a file and name that by store.password_file")
    if parts.scheme in {"postgresql", "postgres"}:
        raise InputError("names no driver: write postgresql+psycopg:// in place of postgresql://")
    if parts.scheme == "sqlite" and (parts.query or parts.path in {"/:memory:", "/file::memory:"}):
        raise InputError(
            "is no plain file, so that nothing in it lasts: write sqlite:////absolute/path.db, no options"
        )
    if parts.scheme == "sqlite" and url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return url
    if parts.scheme == "postgresql+psycopg" and parts.hostname:
        return url
    raise InputError(
        "is no database the tuner knows: write sqlite:////absolute/path.db or postgresql+psycopg://user@host/database"
    )


def _draft_lens(values: tuple[int, ...]) -> tuple[int, ...]:
    """Check draft lengths: at least one, rising, none twice, none negative."""
    if not values:
        raise ValueError("is empty: list at least one draft length, as in [0, 1, 2]")
    if min(values) < 0 or max(values) > LARGEST_DRAFT_LEN:
        raise ValueError(
            f"has a draft length outside 0..{LARGEST_DRAFT_LEN}: list whole numbers in that range"
        )
    if len(set(values)) != len(values):
        raise ValueError("lists a draft length twice: list each one once")
    if list(values) != sorted(values):
        raise ValueError(f"is not in rising order: write {sorted(values)}")
    return values


def _headers(headers: dict[str, str]) -> dict[str, str]:
    """Check header names and values; headers that carry secrets belong in files."""
    for name, value in headers.items():
        if not _HEADER.fullmatch(name) or any(not c.isprintable() for c in value):
            raise ValueError(
                "has a header that HTTP does not allow: use letters, digits and dashes in its name"
            )
        if _SECRET_HEADER.search(name) or _SECRET_VALUE.match(value):
            raise ValueError(
                f"sets {name}, a secret: put a token in a file and name it by bearer_token_file, a "
                "password by password_file"
            )
    return headers


def split_listen(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``, ``[v6]:port`` or ``:port`` (every interface: an empty host).

    Raises:
        ValueError: ``address`` is none of these.
    """
    match = _LISTEN.fullmatch(address)
    if not match or int(match["port"]) > _LARGEST_PORT:
        raise ValueError(
            "is not an address to listen on: write host:port, as in 127.0.0.1:9477 or [::1]:9477"
        )
    return match["v6"] or match["host"] or "", int(match["port"])


def _listen(address: str) -> str:
    """Check an address to listen on."""
    split_listen(address)
    return address


def _clock(text: str) -> str:
    """Check a time of day."""
    if not _CLOCK.fullmatch(text):
        raise ValueError('is not a time of day: write "HH:MM", as in "07:00"')
    return text


def _timezone(name: str) -> str:
    """Check the name of a time zone against the system's table."""
    if name == "UTC":  # always there, while slim images carry no table of zones
        return name
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            "is not a time zone of this system: write UTC, or a name such as Europe/Berlin"
        ) from None
    return name


def _path(path: Path) -> Path:
    """Check a path for what no file system takes."""
    if str(path) in {"", "."} or "\0" in str(path):
        raise ValueError("is not the path of a file: write it as in /etc/tuner/token")
    return path


def _unique(what: str) -> Callable[[tuple[str, ...]], tuple[str, ...]]:
    """Return a validator that refuses a list with the same thing in it twice."""

    def check(values: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(values)) != len(values):
            raise ValueError(f"lists the same {what} twice: list each one once")
        return values

    return check


Duration = Annotated[float, BeforeValidator(_duration), Kind("duration")]
"""Seconds, written with units."""
Count = Annotated[
    float,
    BeforeValidator(_no_bool),
    BeforeValidator(_adapt(parse_number)),
    Field(gt=0, le=LARGEST_COUNT),
    Kind("number"),
]
"""A positive number such as 70e9 or 70B."""
CountOrZero = Annotated[
    float,
    BeforeValidator(_no_bool),
    BeforeValidator(_adapt(parse_number)),
    Field(ge=0, le=LARGEST_COUNT),
    Kind("number"),
]
Ratio = Annotated[
    float,
    BeforeValidator(_no_bool),
    BeforeValidator(_adapt(partial(parse_number, remedy="write a ratio, as in 0.03"))),
    Kind("ratio 0-1"),
]
"""A share; each setting gives its own bounds."""
Whole = Annotated[int, BeforeValidator(_no_bool), Kind("whole number")]
Batch = Annotated[Whole, Field(ge=1, le=LARGEST_BATCH)]
DraftLens = Annotated[tuple[Whole, ...], AfterValidator(_draft_lens), Kind("list of whole numbers")]
Name = Annotated[
    str, AfterValidator(_pattern(_NAME, "use up to 100 letters, digits and . _ / : -")), Kind("name")
]
Word = Annotated[
    str, AfterValidator(_pattern(_WORD, "use lower-case letters, digits, _ and -")), Kind("name")
]
LabelName = Annotated[
    str,
    AfterValidator(_pattern(_LABEL, "use letters, digits and _, as Prometheus labels")),
    Kind("label name"),
]
LabelNames = Annotated[tuple[LabelName, ...], AfterValidator(_unique("label")), Kind("list of label names")]
LabelMap = Annotated[dict[str, str], AfterValidator(_label_map), Kind("label: label")]
Switch = Annotated[bool, BeforeValidator(_switch), Kind("`true` or `false`")]
Size = Annotated[int, BeforeValidator(_no_bool), BeforeValidator(_size), Kind("size")]
"""Bytes, written with KiB or MiB."""
Ranges = Annotated[
    tuple[tuple[int, int, int], ...], BeforeValidator(_ranges), Kind("list of `[first, last, K]`")
]
UserName = Annotated[str, Field(max_length=LARGEST_NAME), AfterValidator(_user_name), Kind("name")]
UrlPath = Annotated[str, Field(max_length=1024), AfterValidator(_url_path), Kind("path of a URL")]
HeaderName = Annotated[
    str, AfterValidator(_pattern(_HEADER, "use letters, digits and -, as HTTP headers")), Kind("header name")
]
Text = Annotated[str, Field(min_length=1, max_length=4096), Kind("text")]
HttpUrl = Annotated[str, AfterValidator(_told(_http_url)), Kind("URL")]
HttpUrls = Annotated[tuple[HttpUrl, ...], AfterValidator(_unique("address")), Kind("list of URLs")]
UrlTemplate = Annotated[str, AfterValidator(_told(_template)), Kind("URL with placeholders")]
StoreUrl = Annotated[str, AfterValidator(_told(_store_url)), Kind("database URL")]
Headers = Annotated[dict[str, str], AfterValidator(_headers), Kind("header: value")]
Listen = Annotated[str, AfterValidator(_listen), Kind("host:port")]
Clock = Annotated[str, AfterValidator(_clock), Kind('"HH:MM"')]
TimeZone = Annotated[str, AfterValidator(_timezone), Kind("time zone")]
File = Annotated[Path, AfterValidator(_path), Kind("path")]
Globs = Annotated[tuple[Text, ...], Kind("list of paths with wildcards")]
