"""Numbers on the command line: what is wrong is answered with an example of the kind that is asked for."""

from __future__ import annotations

import re

import click
import pytest

from tuner._exceptions import InputError
from tuner.cli import tuner
from tuner.cli.parameters import Number, NumberList


def _number_options(group: click.Group, *path: str) -> list[tuple[str, Number]]:
    """Every option of every command that reads numbers, with the type of one number."""
    context = click.Context(group)
    found: list[tuple[str, Number]] = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += _number_options(command, *path, name)
            continue
        for param in command.params:
            kind = param.type.each if isinstance(param.type, NumberList) else param.type
            if isinstance(kind, Number):
                found.append((" ".join([*path, name, param.opts[0]]), kind))
    return found


OPTIONS = _number_options(tuner)


def test_options_are_found() -> None:
    """The walk sees the options it is about."""
    assert len(OPTIONS) > 15


@pytest.mark.parametrize("text", ["a", "-1", "80%", "", "1e300"])
@pytest.mark.parametrize(("where", "kind"), OPTIONS, ids=[where for where, _ in OPTIONS])
def test_the_example_in_an_error_is_accepted(where: str, kind: Number, text: str) -> None:
    """Whatever is wrong, the example in the message is one that this very option takes."""
    with pytest.raises(InputError) as refused:
        kind.parse(text, where)
    examples = re.search(r"as in (\S+)(?: or (\S+))?$", str(refused.value))
    assert examples is not None, str(refused.value)
    for example in filter(None, examples.groups()):
        kind.parse(example, where)


@pytest.mark.parametrize(
    ("option", "example"),
    [
        ("replay --allowed-draft-lens", "as in 4"),
        ("theory speedup --acceptance", "as in 0.8"),
        ("theory draft-len --draft-cost", "as in 0.1"),
        ("theory crossover --flops", "as in 989e12"),
    ],
)
def test_each_kind_has_an_example_of_its_own(option: str, example: str) -> None:
    """A ratio, a draft length and a rate are not answered with one and the same example."""
    kind = dict(OPTIONS)[option]
    with pytest.raises(InputError, match=re.escape(example)):
        kind.parse("a", option)
