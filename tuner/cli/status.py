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
SEVERITIES = ("critical", "warning", "info")
WHO = "give --username and --password-file, or --token-file"

EXAMPLES = """\b
Examples:
  tuner status
  tuner status --url https://tuner.example.org:9477 --ca-file ca.pem --username ops --password-file ops.pw
  tuner status --json | jq .worst_findings
"""


@click.command(epilog=EXAMPLES)
@click.option("--url", default=URL, show_default=True, help="Address of the daemon.")
@click.option("--token-file", type=click.Path(path_type=Path), help="File with the daemon's bearer token.")
@click.option("--username", help="A user of its web configuration, with --password-file.")
@click.option("--password-file", type=click.Path(path_type=Path), help="File with the user's password.")
@click.option("--ca-file", type=click.Path(path_type=Path), help="Authority that signed its certificate.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def status(
    ctx: click.Context,
    *,
    url: str,
    token_file: Path | None,
    username: str | None,
    password_file: Path | None,
    ca_file: Path | None,
    as_json: bool,
) -> None:
    """Show whether the daemon is well, what it noticed, and the schedule of each pool.

    Exit code 0: ready and healthy, 1: it answers and is not, 2: it cannot be asked.
    """
    document = ask(url, ca_file, _credentials(token_file, username, password_file))
    if as_json:
        print_json(document)
    else:
        _print(document, url.rstrip("/"))
    if not (document["ready"] and document["healthy"]):
        ctx.exit(EXIT_UNWELL)


def _credentials(token_file: Path | None, username: str | None, password_file: Path | None) -> dict[str, str]:
    """Return the headers that say who asks; secrets are read from their files.

    Raises:
        InputError: half of a user is given, both ways are, or a file cannot be read.
    """
    from base64 import b64encode

    from tuner.config import read_secret

    if (username is None) != (password_file is None):
        raise InputError("tuner status: give --username and --password-file together")
    if token_file is not None and password_file is not None:
        raise InputError("tuner status: give --token-file, or --username and --password-file, not both")
    if token_file is not None:
        return {"Authorization": f"Bearer {read_secret(token_file)}"}
    if password_file is None:
        return {}
    pair = b64encode(f"{username}:{read_secret(password_file)}".encode()).decode()
    return {"Authorization": f"Basic {pair}"}


def ask(url: str, ca_file: Path | None, headers: dict[str, str]) -> dict[str, Any]:
    """Return the daemon's status, with its pools in short under ``pool_list``.

    Raises:
        InputError: it does not answer, refuses, or answers something else.
    """
    import httpx2

    base = url.rstrip("/")
    if "@" in base:
        raise InputError("--url holds a user name or password: leave it out, and give --token-file")
    try:
        with httpx2.Client(
            timeout=SECONDS, headers=headers, verify=_trust(ca_file), trust_env=False
        ) as client:
            document = _get(client, f"{base}/api/v1/status")
            pools = _get(client, f"{base}/api/v1/pools")
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as error:
        raise InputError(f"{base}: no answer ({' '.join(str(error).split())}): {_remedy(error)}") from None
    if "ready" not in document or "pools" not in pools:
        raise InputError(f"{base}: answers, but not as a tuner does: check --url")
    return {**document, "pool_list": pools["pools"]}


def _remedy(error: BaseException) -> str:
    """Return what to do about no answer; a certificate that is not trusted is another matter than nobody."""
    import ssl

    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return "name the authority of its certificate by --ca-file, and the host as the certificate does"
    if cause is not None:
        return "check --url: is it served with TLS (https), and by a version that both speak?"
    return "check that tuner run is up, and --url (https where it has a certificate)"


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
        raise InputError(f"{address}: refused ({reply.status_code}): {WHO}")
    if reply.status_code != 200 or len(reply.content) > LARGEST:  # noqa: PLR2004 - of HTTP
        raise InputError(f"{address}: answered {reply.status_code}: check --url, and the daemon's log")
    document = reply.json()
    if not isinstance(document, dict):
        raise InputError(f"{address}: answers, but not as a tuner does: check --url")
    return document


def _print(document: dict[str, Any], base: str) -> None:
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
    down = [name for name, up in document["sources"].items() if not up]
    print_line(f"sources: {len(document['sources'])}, down: {', '.join(down) or 'none'}")
    _print_findings(document, base)
    click.echo()
    print_table(
        ["pool", "mode", "engines up", "windows", "findings", "best by the last cycle"],
        [_pool_row(pool) for pool in document["pool_list"]],
        title="Pools",
        words={"mode", "best by the last cycle"},
    )
    click.echo()
    print_table(
        ["job", "runs", "errors", "missed", "skipped", "last s"],
        [
            [job["name"], *(str(job[key]) for key in ("runs", "errors", "missed", "skipped")),
             "-" if job["last_start"] is None else f"{job['last_seconds']:.3f}"]
            for job in document["jobs"]
        ],
        title="Jobs",
    )  # fmt: skip


def _print_findings(document: dict[str, Any], base: str) -> None:
    """Print how many findings there are, and the worst of them: warnings and what is graver."""
    from tuner.serve.grouping import where

    counts = document["findings"]
    told = ", ".join(f"{counts[severity]} {severity}" for severity in SEVERITIES if severity in counts)
    print_line(f"findings: {told or 'none'}" + (f", all at {base}/api/v1/findings" if told else ""))
    for finding in document.get("worst_findings", []):
        if finding["severity"] != "info":
            place = where(finding["subjects"])
            about = f", {place}" if place else ""
            print_line(f"{finding['severity']} {finding['code']}{about}: {finding['message']}", indent="    ")


def _pool_row(pool: dict[str, Any]) -> list[str]:
    from tuner.serve.words import ranges_text

    schedule = pool["schedule"]
    return [
        pool["pool"],
        pool["mode"] or "",
        f"{pool['targets']['up']}/{pool['engines']}",
        str(pool["windows_held"]),
        str(pool["findings"]),
        "cannot say" if schedule is None else ranges_text(schedule),
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
