"""The engines of one pool over time: all sources together, names that survive a change of address."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner._exceptions import InputError
from tuner.addresses import check_template
from tuner.observe.discovery.file_sd import FileSd
from tuner.observe.discovery.found import engine_name, of_labels, of_static, plain_target, target_of
from tuner.observe.discovery.http_sd import HttpSd
from tuner.observe.discovery.notes import Notes
from tuner.observe.discovery.spec import Answer, Roster
from tuner.observe.outcomes import SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import httpx2

    from tuner.fleet import Target
    from tuner.observe.discovery.found import Found
    from tuner.observe.discovery.spec import EnginesSpec


class Directory:
    """Where the engines of one pool are.

    A source that cannot be asked counts with what it said last: an error empties no pool. A source that
    answers an empty list is believed, and a pool left without engines is a finding.
    """

    def __init__(
        self, spec: EnginesSpec, client: httpx2.Client, *, interval: float = 60.0, timeout: float = 5.0
    ) -> None:
        """Ask nothing yet.

        Args:
            spec: where to look.
            client: for ``http_sd``; redirects are not followed.
            interval: seconds between two refreshes, told to ``http_sd``.
            timeout: seconds for an answer of ``http_sd``.

        Raises:
            InputError: the template of admin addresses cannot be used.
        """
        if spec.admin_url_template is not None:
            try:
                check_template(spec.admin_url_template)
            except InputError as error:
                raise InputError(f"admin.url_template {error}") from None
        self._spec = spec
        self._files = FileSd(spec.file_sd) if spec.file_sd else None
        self._http = (
            HttpSd(client, spec.http_sd, interval=interval, timeout=timeout) if spec.http_sd else None
        )
        self._prometheus_said: tuple[Mapping[str, str], ...] = ()
        self._urls: dict[str, str] = {}
        """Engine -> its address at the last refresh."""

    def refresh(self, now: float) -> Roster:
        """Ask every source and return the engines there are.

        Args:
            now: unix seconds, for the Prometheus server.
        """
        notes = Notes(self._spec.pool)
        found = self._found(self._answers(now), notes)
        named = self._named(_collapse(found, self._spec.identity_labels, notes), notes)
        targets = tuple(self._target(engine, each, notes) for engine, each in sorted(named.items()))
        self._urls = {target.engine: target.url for target in targets}
        notes.end(targets)
        return Roster(targets, notes.findings, notes.sources_up)

    def _answers(self, now: float) -> dict[str, Answer]:
        """Return what each source says."""
        answers: dict[str, Answer] = {}
        if self._files is not None:
            answers["file_sd"] = self._files.read()
        if self._http is not None:
            answers["http_sd"] = self._http.read()
        server = self._spec.prometheus
        if server is not None:
            said = server.targets(self._spec.selector, now)
            errors: tuple[str, ...] = ()
            if isinstance(said, SourceError):
                errors = (f"{server.name}: {said.reason}: look at the server",)
            else:
                self._prometheus_said = said
            answers[f"prometheus:{server.name}"] = Answer(self._prometheus_said, errors)
        return answers

    def _found(self, answers: Mapping[str, Answer], notes: Notes) -> list[Found]:
        """Return every target of every source, those of the settings first."""
        found = [of_static(url, self._spec) for url in self._spec.static]
        if found:
            notes.sources_up["static"] = True
        for origin, answer in answers.items():
            refused: list[str] = []
            for labels in answer.groups:
                try:
                    found.append(of_labels(labels, self._spec, origin))
                except InputError as error:
                    refused.append(str(error))
            notes.of_source(origin, answer, refused)
        return found

    def _named(self, found: Sequence[Found], notes: Notes) -> dict[str, Found]:
        """Return the targets by the names of their engines.

        Where two addresses carry one name, as while a pod moves, the one known so far is kept until its
        source drops it: then the other takes over, as the same engine after a restart.
        """
        identity = self._spec.identity_labels
        named: dict[str, Found] = {}
        doubled: list[str] = []
        nameless: list[str] = []
        for each in found:
            engine = engine_name(each, identity)
            if identity and each.origin != "static" and not all(map(each.labels.get, identity)):
                nameless.append(engine)
            if engine in named:
                doubled.append(engine)
                if each.url != self._urls.get(engine):
                    continue
            named[engine] = each
        labels = ", ".join(identity) or "their address"
        notes.several(
            "engine_identity_shared",
            "warning",
            doubled,
            f"left out, whose name ({labels}) another address carries too: add a label to engines.identity "
            "that tells them apart",
        )
        notes.several(
            "engine_identity_missing",
            "warning",
            nameless,
            f"without a label of engines.identity ({labels}), named by an address that changes with every "
            "pod: set the label in discovery",
        )
        return named

    def _target(self, engine: str, found: Found, notes: Notes) -> Target:
        """Return an engine's target; without an admin address where there is none to be made."""
        try:
            return target_of(found, engine, self._spec)
        except InputError as error:
            notes.no_admin.append(f"{engine}: {error}")
            return plain_target(found, engine, self._spec)


def _collapse(found: Sequence[Found], identity: tuple[str, ...], notes: Notes) -> list[Found]:
    """Return each address once: as the first source names it that has the identity labels, else the first.

    A Prometheus server tells no paths, so what it alone names at one address under two names is two engines
    behind one gateway.
    """
    unique: dict[object, Found] = {}
    doubled: list[str] = []
    for each in found:
        key: object = each.key
        kept = unique.get(key)
        if kept is not None and kept.origin == each.origin and each.from_server:
            key = (key, engine_name(each, identity))
            kept = kept if engine_name(kept, identity) == engine_name(each, identity) else unique.get(key)
        if kept is None:
            unique[key] = each
            continue
        doubled.append(f"{each.url} ({kept.origin} and {each.origin})")
        if not all(map(kept.labels.get, identity)) and all(map(each.labels.get, identity)):
            unique[key] = each
    notes.several(
        "target_duplicated",
        "info",
        doubled,
        "named more than once and read once: name each once, or set engines.identity where one address "
        "serves several engines",
    )
    return list(unique.values())
