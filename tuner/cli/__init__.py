"""The ``tuner`` command: one file per group of verbs, imported only when its verb is called."""

from __future__ import annotations

import importlib
import sys

import click

from tuner import __version__
from tuner._exceptions import TunerError

VERBS: dict[str, tuple[str, str, str]] = {
    "check": ("tuner.cli.check", "check", "Validate a configuration file."),
    "plan": ("tuner.cli.plan", "plan", "Turn a benchmark sweep into a schedule."),
    "render": ("tuner.cli.render", "render", "Write or read a schedule in an engine's own dialect."),
    "replay": ("tuner.cli.replay", "replay", "Turn recorded /metrics snapshots into fits and a schedule."),
    "theory": ("tuner.cli.theory", "theory", "Speedup, draft length and crossover from first principles."),
}
"""Verb -> module, attribute, one-line help. The help stands here so that ``tuner --help`` imports no verb."""

EXIT_USAGE = 2
"""Exit code for usage and input errors; 1 is kept for checks that found fault."""
EXIT_INTERRUPTED = 130


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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """List the verbs without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, VERBS[name][2]) for name in sorted(VERBS)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="tuner")
def tuner() -> None:
    """Keep LLM serving engines on the speculative draft length that pays.

    \b
    Examples:
      tuner theory draft-len --profile 0.80,0.72,0.66,0.60,0.55 --draft-cost 0.1
      tuner replay recordings/ --engine vllm
      tuner plan --sweep sweep.csv --json
    """  # noqa: D301


def main(argv: list[str] | None = None) -> None:
    """Run the command and leave with its exit code; an error is one line on stderr.

    Exit codes: 0 answered, 1 a check found fault, 2 usage or input, 130 interrupted.
    """
    try:
        code = tuner.main(args=argv, prog_name="tuner", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(EXIT_USAGE)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "tuner"
        click.echo(f"error: {where}: {' '.join(error.format_message().split())} See {where} --help", err=True)
        sys.exit(EXIT_USAGE)
    except (TunerError, click.ClickException) as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(EXIT_USAGE)
    except click.Abort:
        click.echo("interrupted", err=True)
        sys.exit(EXIT_INTERRUPTED)
    sys.exit(code if isinstance(code, int) else 0)
