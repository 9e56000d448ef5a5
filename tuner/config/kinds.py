"""Kinds of settings: how a duration, a count, a URL or a list of draft lengths is read and refused.

Validators raise ``ValueError`` with a message of the form ``problem: remedy``; the loader adds file,
line and field. No message repeats a value that may hold a secret.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, parse_qsl, urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BeforeValidator, Field

from tuner._exceptions import InputError
from tuner.quantities import parse_duration, parse_number

LARGEST_COUNT = 1e24
"""Above any count or rate of a machine, below where products overflow."""
LARGEST_BATCH = 1_000_000
"""Requests per step taken for real; engines run at most a few thousand."""
LARGEST_DRAFT_LEN = 1024
"""The longest block the theory takes for real, see :data:`tuner.theory.acceptance.MAX_DRAFT_LEN`."""
LARGEST_NAME = 100

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:-]*")
_WORD = re.compile(r"[a-z][a-z0-9_-]*")
_LABEL = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CLOCK = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")
_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[A-Za-z0-9._-]*)):(?P<port>[0-9]{1,5})")
_PLACEHOLDER = re.compile(r"\{\{\s*(.*?)\s*\}\}")
_SECRET_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key"})
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


def _split(url: str) -> SplitResult:
    """Split a URL, or refuse what is none; the URL itself is not repeated."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # a property that raises for ports above 65535
    except ValueError:
        raise ValueError("is not a URL: write it as in http://127.0.0.1:9090") from None
    if any(character.isspace() or not character.isprintable() for character in url):
        raise ValueError("is not a URL: remove the blanks in it")
    return parts


def _http_url(url: str) -> str:
    """Check an HTTP address without secrets, query or fragment; a trailing slash is dropped."""
    parts = _split(url)
    if "@" in parts.netloc:
        raise ValueError(
            "holds a user name or password: put the secret in a file and name it by a *_file key"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("is not an HTTP address: write it as in http://127.0.0.1:9090")
    if parts.query or parts.fragment:
        raise ValueError("has a query or fragment: give the address and path only")
    return url.rstrip("/")


def _template(template: str) -> str:
    """Check a URL with the placeholder ``{{ address }}`` and no other."""
    names = _PLACEHOLDER.findall(template)
    if any(name != "address" for name in names) or "{%" in template:
        raise ValueError(
            "has an unknown placeholder: only {{ address }}, the engine's host:port, is filled in"
        )
    _http_url(_PLACEHOLDER.sub("127.0.0.1", template))
    return template


def _store_url(url: str) -> str:
    """Check a database address of the two kinds there are, without a password in it."""
    parts = _split(url)
    if parts.password is not None or any(_SECRET_QUERY.search(name) for name, _ in parse_qsl(parts.query)):
        raise ValueError("holds a password: put it in a file and name that by store.password_file")
    if parts.scheme in {"postgresql", "postgres"}:
        raise ValueError("names no driver: write postgresql+psycopg:// in place of postgresql://")
    if parts.scheme == "sqlite" and url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return url
    if parts.scheme == "postgresql+psycopg" and parts.hostname:
        return url
    raise ValueError(
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
        if name.lower() in _SECRET_HEADERS:
            raise ValueError(
                f"sets {name}, a secret: put the token in a file and name it by bearer_token_file"
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


def _unique(values: tuple[str, ...]) -> tuple[str, ...]:
    """Refuse a list that names the same thing twice."""
    if len(set(values)) != len(values):
        raise ValueError("lists the same address twice: list each one once")
    return values


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
HeaderName = Annotated[
    str, AfterValidator(_pattern(_HEADER, "use letters, digits and -, as HTTP headers")), Kind("header name")
]
Text = Annotated[str, Field(min_length=1, max_length=4096), Kind("text")]
HttpUrl = Annotated[str, AfterValidator(_http_url), Kind("URL")]
HttpUrls = Annotated[tuple[HttpUrl, ...], AfterValidator(_unique), Kind("list of URLs")]
UrlTemplate = Annotated[str, AfterValidator(_template), Kind("URL with `{{ address }}`")]
StoreUrl = Annotated[str, AfterValidator(_store_url), Kind("database URL")]
Headers = Annotated[dict[str, str], AfterValidator(_headers), Kind("header: value")]
Listen = Annotated[str, AfterValidator(_listen), Kind("host:port")]
Clock = Annotated[str, AfterValidator(_clock), Kind('"HH:MM"')]
TimeZone = Annotated[str, AfterValidator(_timezone), Kind("time zone")]
File = Annotated[Path, AfterValidator(_path), Kind("path")]
Globs = Annotated[tuple[Text, ...], Kind("list of paths with wildcards")]
