"""YAML text → plain data with the line of every key, and the faults of the text itself.

The text is read by the core schema of YAML 1.2: ``true`` and ``false`` are the only booleans, and
``07:00`` is text, where YAML 1.1 makes ``off`` a boolean and ``07:00`` the number 420.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Loc = tuple[str | int, ...]

LARGEST_DEPTH = 30
"""Nesting taken for real; the settings go 5 deep."""
LARGEST_SIZE = 100_000
"""Values taken for real, aliases counted as often as they are used: a pool has about 40."""
_TAG = "tag:yaml.org,2002:"


class CoreLoader(yaml.SafeLoader):
    """PyYAML's scanner and parser with the scalars of YAML 1.2's core schema."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own hook


for _name, _pattern, _first in (
    ("bool", r"(?:true|True|TRUE|false|False|FALSE)", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)", "-+."),
    ("null", r"~|null|Null|NULL|", ("~", "n", "N", "")),
    ("merge", r"<<", "<"),
):
    CoreLoader.add_implicit_resolver(_TAG + _name, re.compile(f"^(?:{_pattern})$"), list(_first))


@dataclass(frozen=True, slots=True)
class TextFault:
    """Something wrong with the text at one line."""

    line: int
    loc: Loc
    problem: str
    remedy: str


@dataclass(slots=True)
class Document:
    """What the text says."""

    data: dict[str, Any] = field(default_factory=dict)
    lines: dict[Loc, int] = field(default_factory=dict)
    """1-based line of every key and list item."""
    faults: list[TextFault] = field(default_factory=list)

    def line_of(self, loc: Loc) -> int:
        """Return the line of ``loc``, or of the nearest section around it that the text has."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)


def read_document(content: bytes) -> Document:
    """Read the bytes of a settings file."""
    document = Document()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        document.faults.append(TextFault(line, (), "is not UTF-8", "save the file as UTF-8"))
        return document
    try:
        root = yaml.compose(text, Loader=CoreLoader)
    except yaml.YAMLError as error:
        document.faults.append(_syntax_fault(error, text))
        return document
    except RecursionError:
        document.faults.append(TextFault(1, (), "is nested too deep", "remove some levels of brackets"))
        return document
    if root is None:
        document.faults.append(TextFault(1, (), "is empty", "give at least one pool under pools"))
    elif not isinstance(root, yaml.MappingNode):
        document.faults.append(
            TextFault(1, (), "has no sections", "write sections as key: value, such as pools:")
        )
    else:
        document.data = _Reader(document).mapping(root, ())
    return document


def _syntax_fault(error: yaml.YAMLError, text: str) -> TextFault:
    """Turn a complaint of the YAML parser into one line."""
    mark = getattr(error, "problem_mark", None)
    position = getattr(error, "position", None)
    if mark is not None:
        line = mark.line + 1
    else:
        line = text[:position].count("\n") + 1 if isinstance(position, int) else 1
    problem = " ".join(
        str(getattr(error, "problem", None) or getattr(error, "reason", "cannot be read")).split()
    )
    remedy = "check indentation, brackets and quotes on this line and the one before"
    if "'\\t'" in problem:
        remedy = "indent with blanks, not tabs"
    elif "single document" in str(getattr(error, "context", "")):
        problem, remedy = "holds several documents", "remove the line of dashes between them"
    elif "undefined alias" in problem:
        remedy = "define the anchor above its use"
    return TextFault(line, (), f"is not YAML ({problem})", remedy)


def _integer(text: str) -> int:
    """Read decimal, ``0o`` octal and ``0x`` hexadecimal numbers."""
    base = {"0o": 8, "0x": 16}.get(text[:2])
    return int(text) if base is None else int(text[2:], base)


_SCALARS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "bool": lambda text: text.lower() == "true",
    "int": _integer,
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
}


class _Reader:
    """Turns nodes into plain data, keeping lines and faults."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.left = LARGEST_SIZE

    def value(self, node: yaml.Node, loc: Loc) -> Any:  # noqa: ANN401 - data of any shape
        """Return the data of one node; ``None`` after a fault."""
        self.left -= 1
        if self.left < 0 or len(loc) > LARGEST_DEPTH:
            if self.left >= -1:
                self.fault(
                    node, loc, "is too large or nested too deep", "remove repeated or circular aliases"
                )
            return None
        if isinstance(node, yaml.MappingNode) and node.tag == _TAG + "map":
            return self.mapping(node, loc)
        if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
            return self.sequence(node, loc)
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, loc)
        return self.fault(node, loc, f"has the tag {node.tag}", "remove the tag")

    def sequence(self, node: yaml.SequenceNode, loc: Loc) -> list[Any]:
        """Return a list; items without a value are faults and left out."""
        items = []
        for index, item in enumerate(node.value):
            where = (*loc, index)
            self.document.lines[where] = item.start_mark.line + 1
            items.append(self.value(item, where))
        return items

    def mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        """Return a mapping; keys twice, keys that are no text and keys without value are faults."""
        result: dict[str, Any] = {}
        own: set[str] = set()
        for key_node, value_node in node.value:
            if key_node.tag == _TAG + "merge":
                for merged in self.merged(value_node, loc):
                    result |= {key: value for key, value in merged.items() if key not in result}
                continue
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag != _TAG + "str":
                self.fault(key_node, loc, "has a key that is not text", "write the key in quotes")
                continue
            key = str(key_node.value)
            where = (*loc, key)
            if key in own:
                first = self.document.line_of(where)
                self.fault(key_node, where, f"is given twice, first on line {first}", "remove one of them")
                continue
            own.add(key)
            self.document.lines[where] = key_node.start_mark.line + 1
            value = self.value(value_node, where)
            if value is not None:
                result[key] = value
        return result

    def merged(self, node: yaml.Node, loc: Loc) -> Iterator[dict[str, Any]]:
        """Yield what ``<<`` refers to: one mapping or several."""
        for each in node.value if isinstance(node, yaml.SequenceNode) else [node]:
            value = self.value(each, loc)
            if isinstance(value, dict):
                yield value
            else:
                self.fault(node, loc, "merges what is not a section", "give << an alias of a section")

    def scalar(self, node: yaml.ScalarNode, loc: Loc) -> Any:  # noqa: ANN401 - text, number or boolean
        """Return text, a number or a boolean."""
        kind, text = node.tag.removeprefix(_TAG), node.value
        if kind == "null":
            return self.fault(node, loc, "has no value", "fill it in, or remove the key")
        if kind not in _SCALARS:
            return self.fault(node, loc, f"has the tag {node.tag}", "remove the tag")
        try:
            return _SCALARS[kind](text)
        except ValueError:  # more digits than Python converts, or a tag that the text contradicts
            return self.fault(node, loc, f"is not the {kind} that it seems to be", "write it plainly")

    def fault(self, node: yaml.Node, loc: Loc, problem: str, remedy: str) -> None:
        """Note a fault at a node."""
        self.document.faults.append(TextFault(node.start_mark.line + 1, loc, problem, remedy))
