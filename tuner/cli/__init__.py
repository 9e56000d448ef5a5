"""The ``tuner`` command: one file per group of verbs, imported only when its verb is called."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from tuner import __version__
from tuner._exceptions import TunerError

VERBS: dict[str, tuple[str, str, str]] = {
    "check": ("tuner.cli.check", "check", "Validate a configuration file."),
    "doctor": ("tuner.cli.doctor", "doctor", "Ask every engine, server and database whether it can be used."),
    "once": ("tuner.cli.once", "once", "Scrape a few times, fit and plan once, and print it."),
    "db": ("tuner.cli.db", "db", "Create, upgrade and check the database."),
    "plan": ("tuner.cli.plan", "plan", "Turn a benchmark sweep into a schedule."),
    "render": ("tuner.cli.render", "render", "Write or read a schedule in an engine's own dialect."),
    "replay": ("tuner.cli.replay", "replay", "Turn recorded /metrics snapshots into fits and a schedule."),
    "run": ("tuner.cli.run", "run", "Watch engines, remember, and plan: the daemon."),
    "demo": ("tuner.cli.demo", "demo", "Watch the daemon learn a simulated fleet; nothing to configure."),
    "simulate": ("tuner.cli.simulate", "simulate", "Serve simulated engines over HTTP."),
    "status": ("tuner.cli.status", "status", "Show how a running daemon is doing."),
    "theory": ("tuner.cli.theory", "theory", "Speedup, draft length and crossover from first principles."),
}
"""Verb -> module, attribute, one-line help. The help stands here so that ``tuner --help`` imports no verb."""

EXIT_USAGE = 2
"""Exit code for usage and input errors; 1 is kept for checks that found fault."""
EXIT_INTERRUPTED = 130
EXIT_READER_GONE = 141
"""128 plus SIGPIPE, as shells count a writer whose reader has left, as in ``tuner ... | head``."""


class ReaderGoneError(Exception):
    """Whoever read the output has left; click would make exit code 1 of it, which means faults."""


class LazyGroup(click.Group):
    """A group whose commands are imported on first use: numpy and scipy cost 0.3 s to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return every verb, in the order of the alphabet."""
        return sorted(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import the module of one verb."""
        if cmd_name not in VERBS:
            return None
        module, attribute, _ = VERBS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Read the arguments, and print the help where it is asked for."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except BrokenPipeError:
            raise ReaderGoneError from None

    def invoke(self, ctx: click.Context) -> Any:  # noqa: ANN401 - whatever a verb returns
        """Run a verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGoneError from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, VERBS[name][2]) for name in sorted(VERBS)])


EXAMPLES = """\b
Examples:
  tuner theory draft-len --profile 0.80,0.72,0.66,0.60,0.55 --draft-cost 0.1
  tuner replay recordings/ --engine vllm
  tuner plan --sweep sweep.csv --json
"""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXAMPLES)
@click.version_option(__version__, prog_name="tuner")
def tuner() -> None:
    """Keep LLM serving engines on the speculative draft length that pays."""


def main(argv: list[str] | None = None) -> None:
    """Run the command and leave with its exit code; an error is one line on stderr.

    Exit codes: 0 answered, 1 a check found fault, 2 usage, input or output, 130 interrupted, 141 the reader
    of the output left early.
    """
    _open_streams()
    try:
        code = tuner.main(args=argv, prog_name="tuner", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.NoArgsIsHelpError as error:
        _leave(error.format_message(), EXIT_USAGE)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "tuner"
        message = " ".join(error.format_message().split())
        _leave(f"error: {where}: {message} See {where} --help", EXIT_USAGE)
    except (TunerError, click.ClickException) as error:
        _leave(f"error: {error}", EXIT_USAGE)
    except click.Abort:
        _leave("interrupted", EXIT_INTERRUPTED)
    except (ReaderGoneError, BrokenPipeError):
        _abandon_streams()
        sys.exit(EXIT_READER_GONE)
    except OSError as error:
        # What is read is wrapped where it is read; what is left are the streams: a full disk, a lost mount.
        place = f"{error.filename}: " if error.filename else "the output cannot be written: "
        _abandon_streams()
        _leave(f"error: {place}{error.strerror or error}: make room or write elsewhere", EXIT_USAGE)
    sys.exit(code if isinstance(code, int) else 0)


def _leave(message: str, code: int) -> NoReturn:
    """Say one last thing, if stderr takes it, and leave."""
    with contextlib.suppress(OSError):
        click.echo(message, err=True)
    sys.exit(code)


def _open_streams() -> None:
    """Open streams that are closed (``>&-``) on nothing.

    Python has ``None`` there, and the next file that is opened, a database perhaps, takes their place.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open till the end


def _abandon_streams() -> None:
    """Give up what is left in the output buffer, which would fail again, with a traceback, on the way out."""
    with contextlib.suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)
