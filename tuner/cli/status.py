"""``tuner status``: how a running daemon is doing, by its HTTP API."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner._exceptions import InputError
from tuner.cli.output import print_heading, print_json, print_line, print_table

if TYPE_CHECKING:
    import ssl

EXIT_UNWELL = 1
"""Exit code for a daemon that answers and is not ready or not healthy; 2 is kept for one that does not."""
SECONDS = 10.0
"""Time that the daemon gets; it answers from memory."""
LARGEST = 8 << 20
"""Bytes taken of an answer; a thousand pools make 1 MB."""
URL = "http://127.0.0.1:9477"

EXAMPLES = """\b
Examples:
  tuner status
  tuner status --url https://tuner.example.org:9477 --ca-file ca.pem --token-file api.token --json
"""


@click.command(epilog=EXAMPLES)
@click.option("--url", default=URL, show_default=True, help="Address of the daemon.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the daemon's bearer token.")
@click.option("--ca-file", type=click.Path(path_type=Path), help="Authority that signed its certificate.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def status(
    ctx: click.Context, *, url: str, token_file: Path | None, ca_file: Path | None, as_json: bool
) -> None:
    """Show whether the daemon is well, what it sees, and the schedule of each pool.

    Exit code 0: ready and healthy, 1: it answers and is not, 2: it cannot be asked.
    """
    document = ask(url, token_file, ca_file)
    if as_json:
        print_json(document)
    else:
        _print(document)
    if not (document["ready"] and document["healthy"]):
        ctx.exit(EXIT_UNWELL)


def ask(url: str, token_file: Path | None, ca_file: Path | None) -> dict[str, Any]:
    """Return the daemon's status, with its pools in short under ``pool_list``.

    Raises:
        InputError: it does not answer, refuses, or answers something else.
    """
    import httpx2

    from tuner.config import read_secret

    headers = {} if token_file is None else {"Authorization": f"Bearer {read_secret(token_file)}"}
    base = url.rstrip("/")
    try:
        with httpx2.Client(
            timeout=SECONDS, headers=headers, verify=_trust(ca_file), trust_env=False
        ) as client:
            document = _get(client, f"{base}/api/v1/status")
            pools = _get(client, f"{base}/api/v1/pools")
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise InputError(
            f"{base}: no answer ({' '.join(str(error).split())}): check that tuner run is up, and --url"
        ) from None
    if "ready" not in document or "pools" not in pools:
        raise InputError(f"{base}: answers, but not as a tuner does: check --url")
    return {**document, "pool_list": pools["pools"]}


def _trust(ca_file: Path | None) -> ssl.SSLContext | bool:
    if ca_file is None:
        return True
    import ssl

    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise InputError(f"{ca_file}: no certificate authority ({error.strerror}): name a PEM file") from None


def _get(client: Any, address: str) -> dict[str, Any]:  # noqa: ANN401 - the client is imported late
    """Return one answer."""
    reply = client.get(address)
    if reply.status_code in {401, 403}:
        raise InputError(f"{address}: refused ({reply.status_code}): give --token-file")
    if reply.status_code != 200 or len(reply.content) > LARGEST:  # noqa: PLR2004 - of HTTP
        raise InputError(f"{address}: answered {reply.status_code}: check --url, and the daemon's log")
    document = reply.json()
    if not isinstance(document, dict):
        raise InputError(f"{address}: answers, but not as a tuner does: check --url")
    return document


def _print(document: dict[str, Any]) -> None:
    role = "leading" if document["leader"] else "standing by"
    print_heading(f"tuner {document['version']}, {role}, up {_span(document['uptime_seconds'])}")
    for word, reasons in (("not ready", "not_ready"), ("unhealthy", "unhealthy")):
        for reason in document[reasons]:
            print_line(f"{word}: {reason}")
    if not document["config"]["reload_ok"]:
        print_line("the last reload of the settings failed: see the log")
    windows, targets = document["windows"], document["targets"]
    print_line(f"engines: {targets['up']} up, {targets['down']} down, {targets['unknown']} not asked yet")
    print_line(f"windows: {windows['buffered']} wait for the database, {windows['dropped']} were dropped")
    findings = ", ".join(f"{count} {severity}" for severity, count in sorted(document["findings"].items()))
    print_line(f"findings: {findings or 'none'}")
    down = [name for name, up in document["sources"].items() if not up]
    print_line(f"sources: {len(document['sources'])}, down: {', '.join(down) or 'none'}")
    click.echo()
    print_table(
        ["pool", "mode", "engines up", "windows", "schedule", "findings"],
        [_pool_row(pool) for pool in document["pool_list"]],
        title="Pools",
    )
    click.echo()
    print_table(
        ["job", "runs", "errors", "missed", "skipped", "last s"],
        [
            [job["name"], *(str(job[key]) for key in ("runs", "errors", "missed", "skipped")),
             f"{job['last_seconds']:.3f}"]
            for job in document["jobs"]
        ],
        title="Jobs",
    )  # fmt: skip


def _pool_row(pool: dict[str, Any]) -> list[str]:
    schedule = pool["schedule"]
    shown = "cannot say" if schedule is None else " ".join(f"{a}-{b}:{k}" for a, b, k in schedule)
    return [
        pool["pool"],
        pool["mode"] or "",
        f"{pool['targets']['up']}/{pool['engines']}",
        str(pool["windows_held"]),
        shown,
        str(pool["findings"]),
    ]


def _span(seconds: float) -> str:
    """Return a time in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
