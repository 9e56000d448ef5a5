"""``tuner db``: the schema of the database, and whether it is this release's."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import click

from tuner._exceptions import StoreError
from tuner.cli.output import print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from tuner.store import Revision, Store


class Place(TypedDict):
    """What the options say of the database."""

    config_file: Path | None
    url: str | None
    password_file: Path | None


EXIT_FAULT = 1
"""Exit code for a database that this release cannot work with; 2 is kept for one that cannot be asked."""

EXAMPLES = """\b
Examples:
  tuner db upgrade --config.file /etc/tuner/tuner.yaml
  tuner db check --url sqlite:////var/lib/tuner/tuner.db
  tuner db current --url postgresql+psycopg://tuner@db/tuner --password-file /etc/tuner/db.password
"""


@click.group(epilog=EXAMPLES)
def db() -> None:
    """Create, upgrade and check the database."""


UPGRADE_EXAMPLES = """\b
Examples:
  tuner db upgrade --config.file /etc/tuner/tuner.yaml
"""
CURRENT_EXAMPLES = """\b
Examples:
  tuner db current --url postgresql+psycopg://tuner@db/tuner --password-file /etc/tuner/db.password
"""
CHECK_EXAMPLES = """\b
Examples:
  tuner db check --url sqlite:////var/lib/tuner/tuner.db
  tuner db check --config.file /etc/tuner/tuner.yaml --json
"""


def _place(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a database."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON."),
        click.option(
            "--password-file", type=click.Path(path_type=Path), help="File with the password, beside --url."
        ),
        click.option("--url", help="Database, instead of store.url of the configuration."),
        click.option(
            "--config.file", "config_file", type=click.Path(path_type=Path), help="Configuration file."
        ),
    ):
        command = option(command)
    return command


@db.command(epilog=UPGRADE_EXAMPLES, short_help="Bring the schema to this release's.")
@_place
def upgrade(*, as_json: bool, **place: Unpack[Place]) -> None:
    """Create the tables, or bring them to this release's; another process that does so is waited for."""
    with closing(_open(**place)) as store:
        before = store.revision().current
        found = store.migrate()
        if as_json:
            print_json({**_facts(store, found), "before": before})
        elif before == found.current:
            click.echo(f"{store.place}: at {found.current} already")
        else:
            click.echo(f"{store.place}: {before or 'empty'} -> {found.current}")


@db.command(epilog=CURRENT_EXAMPLES, short_help="Print the schema's version.")
@_place
def current(*, as_json: bool, **place: Unpack[Place]) -> None:
    """Print which version of the schema the database has, and which one this release wants."""
    with closing(_open(**place)) as store:
        found = store.revision()
        if as_json:
            print_json(_facts(store, found))
        else:
            click.echo(f"{store.place}: {found.current or 'empty'}, this release wants {found.head}")


@db.command(epilog=CHECK_EXAMPLES, short_help="Tell whether this release can use the database.")
@_place
@click.pass_context
def check(ctx: click.Context, /, *, as_json: bool, **place: Unpack[Place]) -> None:
    """Tell whether the database is as this release wants it.

    Exit code 0: it is, 1: it is not, 2: it cannot be asked.
    """
    with closing(_open(**place)) as store:
        found = store.revision()
        problem = ""
        try:
            store.check()
        except StoreError as error:
            if error.retryable:
                raise
            problem = str(error)
        if as_json:
            print_json({**_facts(store, found), "problem": problem})
        elif problem:
            click.echo(problem, err=True)
        else:
            click.echo(f"{store.place}: at {found.current}, {store.size_bytes() / 1e6:.1f} MB")
    if problem:
        ctx.exit(EXIT_FAULT)


def _facts(store: Store, found: Revision) -> dict[str, Any]:
    """Return what all verbs tell."""
    return {
        "database": store.place,
        "current": found.current,
        "head": found.head,
        "ok": found.current == found.head,
    }


def _open(**place: Unpack[Place]) -> Store:
    """Open the database that the options name."""
    from tuner.store import open_store

    config_file, url, password_file = place["config_file"], place["url"], place["password_file"]
    if url is None:
        if config_file is None:
            raise click.UsageError("give --config.file FILE or --url URL.")
        if password_file is not None:
            raise click.UsageError(
                "--password-file goes with --url; the configuration has store.password_file."
            )
        from tuner.config import load_config

        settings = load_config(config_file).store
        url, password_file = settings.url, settings.password_file
    elif config_file is not None:
        raise click.UsageError("give --config.file or --url, not both.")
    password = None
    if password_file is not None:
        from tuner.config import read_secret

        password = read_secret(password_file)
    return open_store(url, password=password)
