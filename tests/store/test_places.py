"""Where a database may be, and what is said of where it may not."""

from __future__ import annotations

import os
import pwd
import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.store.processes import child
from tests.store.samples import window
from tuner._exceptions import StoreError
from tuner.store import open_store, place
from tuner.store.place import NETWORK_FILE_SYSTEMS, check_file, file_system_type

TMPFS = 0x01021994
PROC = 0x9FA0


def refusal(url: str) -> str:
    """Return the one line with which a URL is refused."""
    with pytest.raises(StoreError) as refused:
        open_store(url)
    assert not refused.value.retryable
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    """The folder, what is wrong, and what to do."""
    assert refusal(f"sqlite:///{tmp_path}/no/tuner.db") == (
        f"{tmp_path}/no: no such folder: create it, owned by the user that tuner runs as"
    )


def test_a_folder_is_no_database(tmp_path: Path) -> None:
    """A path that is a folder gets a file name proposed."""
    assert refusal(f"sqlite:///{tmp_path}") == (
        f"{tmp_path}: is a folder: name a file in it, as in {tmp_path}/tuner.db"
    )


@pytest.mark.parametrize("content", [b"hello, this is no database", b"x"])
def test_another_file_is_not_touched(tmp_path: Path, content: bytes) -> None:
    """What is no SQLite database is refused before it is opened, and stays as it is."""
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    assert "is not an SQLite database" in refusal(f"sqlite:///{file}")
    assert file.read_bytes() == content


def test_an_empty_file_is_a_new_database(tmp_path: Path) -> None:
    """SQLite makes one of it, and so do we: packages create the file to set its owner."""
    file = tmp_path / "tuner.db"
    file.touch()
    with closing(open_store(f"sqlite:///{file}")) as store:
        store.migrate()
        assert store.add_windows([window()], fence=0) == 1


def test_a_special_file_is_refused(tmp_path: Path) -> None:
    """A named pipe would hang whoever opens it."""
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file" in refusal(f"sqlite:///{tmp_path}/pipe")


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_is_not_writable_is_refused(what: str) -> None:
    """Another user's folder or file: refused at the start, not at the first write."""
    if os.geteuid() != 0:
        pytest.skip("only root can become a user that may not write")
    nobody = pwd.getpwnam("nobody")
    folder = Path("/tmp") / f"tuner-place-{os.getpid()}-{what}"  # noqa: S108 - a path that nobody can reach
    folder.mkdir()
    try:
        file = folder / "tuner.db"
        folder.chmod(0o755 if what == "folder" else 0o777)
        with closing(open_store(f"sqlite:///{file}")) as store:
            store.migrate()
        file.chmod(0o644)
        os.seteuid(nobody.pw_uid)
        try:
            with pytest.raises(StoreError, match=r"not writable|not readable and writable"):
                check_file(file)
        finally:
            os.seteuid(0)
    finally:
        for each in folder.iterdir():
            each.unlink()
        folder.rmdir()


@pytest.mark.parametrize("magic", sorted(NETWORK_FILE_SYSTEMS))
def test_a_network_file_system_is_refused(tmp_path: Path, magic: int) -> None:
    """By the number that the kernel gives, whatever the mount is called."""
    with pytest.raises(StoreError, match="local disk, or use PostgreSQL") as refused:
        check_file(tmp_path / "tuner.db", lambda _: magic)
    assert NETWORK_FILE_SYSTEMS[magic] in str(refused.value)


def test_the_kernel_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number read is the kernel's: known ones are told right, and a store asks for it."""
    assert file_system_type(Path("/proc")) == PROC
    assert file_system_type(Path("/dev/shm")) == TMPFS  # noqa: S108 - nothing is written
    assert file_system_type(tmp_path) not in NETWORK_FILE_SYSTEMS
    assert file_system_type(tmp_path / "missing") == 0
    monkeypatch.setitem(NETWORK_FILE_SYSTEMS, file_system_type(tmp_path), "NFS")
    assert "lies on NFS" in refusal(f"sqlite:///{tmp_path}/tuner.db")


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:x?mode=memory&uri=true",
        "mysql://root@localhost/tuner",
        "postgresql+psycopg2://localhost/tuner",
        "no url",
        "",
    ],
)
def test_other_databases_are_refused_with_what_is_possible(url: str) -> None:
    """The remedy shows both forms."""
    said = refusal(url)
    assert "sqlite:////absolute/path/tuner.db" in said
    assert "postgresql+psycopg://" in said


def test_a_password_in_the_url_is_used_and_never_shown(postgres_url: str) -> None:
    """Neither the store nor an error of it shows a password that came in the URL."""
    with_password = re.sub(r"postgres@", "postgres:s3cr3t-word@", postgres_url)
    with closing(open_store(with_password)) as store:
        store.migrate()
        shown = f"{store!r} {store.place} {vars(store)} {store._database.engine!r} {store._database.place!r}"
        assert "s3cr3t-word" not in shown
        assert "postgres@127.0.0.1" in store.place


def test_a_relative_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that changes its folder later keeps its database."""
    monkeypatch.chdir(tmp_path)
    with closing(open_store("sqlite:///tuner.db")) as store:
        store.migrate()
        monkeypatch.chdir("/")
        assert store.add_windows([window()], fence=0) == 1
        assert store.place == str(tmp_path / "tuner.db")
    assert place.parse_place("sqlite:////var/lib/tuner/tuner.db").file == Path("/var/lib/tuner/tuner.db")


def test_a_process_without_room_for_files_says_so(tmp_path: Path) -> None:
    """A store that another process cannot open is told there in one line."""
    with child(f"sqlite:///{tmp_path}/tuner.db") as other:
        (tmp_path / "tuner.db").mkdir()
        refused = other.ask("store.migrate()")
        assert refused["error"] == "StoreError"
        assert "cannot be opened" in refused["message"]
        assert "\n" not in refused["message"]
