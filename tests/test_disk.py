"""The owner of the system's calls for files, also on systems that lack some of them."""

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from dekrr import disk
from dekrr.mesh import node
from dekrr.mesh.session import journal

# What the sites of a system without these calls would see: macOS lacks the first, Windows all of them.
LACKING = """
import os, sys
for name in {lacking}:
    if hasattr(os, name):
        delattr(os, name)
    else:
        sys.modules[name] = None
"""
PROGRAM = """
import sys
from pathlib import Path
import dekrr.mesh.node
import dekrr.cli.app
from dekrr import disk
from dekrr.mesh.session.journal import FileJournal, Opening, Received

path = Path(sys.argv[1]) / "checkpoint"
records = [Opening("r", "a", "d", (), None, {{}}), Received(0, {{"b": b"xyz" * 1000}})]
for _ in range(2):
    journal = FileJournal(path)
    for record in records:
        journal.append(record)
    journal.close()
journal = FileJournal(path)
assert list(journal.records()) == records + records
journal.close()
with disk.replacing(path, durable=True) as unfinished:
    unfinished.write_bytes(b"secret")
assert path.read_bytes() == b"secret"
assert not any(name in sys.modules and sys.modules[name] for name in {modules})
"""


@pytest.mark.parametrize(
    ("lacking", "modules"),
    [(["fdatasync"], []), (["fdatasync", "pread", "pwrite", "O_DIRECTORY", "umask", "fcntl"], ["fcntl"])],
    ids=["macOS", "Windows"],
)
def test_a_system_without_some_calls_imports_everything_and_keeps_a_journal(tmp_path, lacking, modules):
    (tmp_path / "sitecustomize.py").write_text(LACKING.format(lacking=lacking))
    paths = [str(tmp_path), str(Path(disk.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(modules=modules), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_lock_of_windows_is_of_a_byte_that_nobody_reads(tmp_path, monkeypatch):
    locked = set()

    def locking(descriptor, mode, n_bytes):
        where = os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR), n_bytes
        if where in locked:
            raise PermissionError(13, "Permission denied")
        locked.add(where)

    monkeypatch.setattr(disk, "_fcntl", None)
    monkeypatch.setattr(disk, "_msvcrt", SimpleNamespace(locking=locking, LK_NBLCK=2))
    file = disk.LockedFile(tmp_path / "file")
    file.write(b"content", at=0)
    assert file.size == 7
    with pytest.raises(BlockingIOError):
        disk.LockedFile(tmp_path / "file")
    assert file.read(100, at=3) == b"tent"
    file.close()


def test_one_process_at_a_time_has_a_file(tmp_path):
    file = disk.LockedFile(tmp_path / "new" / "file")
    with pytest.raises(BlockingIOError):
        disk.LockedFile(tmp_path / "new" / "file")
    file.close()
    disk.LockedFile(tmp_path / "new" / "file").close()


def test_a_closed_file_writes_into_no_other(tmp_path):
    """The system gives a descriptor's number to the next file; a thread that comes late must not write into that."""
    closed = disk.LockedFile(tmp_path / "closed")
    closed.close()
    other = disk.LockedFile(tmp_path / "other")
    for late in (lambda: closed.write(b"late", at=0), lambda: closed.truncate(9), closed.close):
        with pytest.raises(OSError, match="Bad file descriptor"):
            late()
    assert other.size == 0
    other.close()


def test_the_mask_of_new_files_is_never_set(tmp_path, monkeypatch):
    def refuse(mask):
        raise AssertionError("files of other threads would be made with this mask")

    monkeypatch.setattr(os, "umask", refuse)
    (tmp_path / "usual").touch()
    usual = (tmp_path / "usual").stat().st_mode
    with disk.replacing(tmp_path / "new", private=False) as unfinished:
        unfinished.write_text("x")
    assert (tmp_path / "new").stat().st_mode == usual
    (tmp_path / "shared").touch()
    (tmp_path / "shared").chmod(0o666)
    for name, private in (("shared", False), ("own", True)):
        with disk.replacing(tmp_path / name, private=private) as unfinished:
            unfinished.write_text("x")
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o666
    assert (tmp_path / "own").stat().st_mode & 0o777 == 0o600
    assert {path.name for path in tmp_path.iterdir()} == {"usual", "new", "shared", "own"}


def test_a_file_keeps_its_owners_mode_while_it_is_replaced(tmp_path):
    path = tmp_path / "table.csv"
    path.touch()
    path.chmod(0o600)
    with disk.replacing(path, private=False) as unfinished:
        assert unfinished.stat().st_mode & 0o077 == 0
        unfinished.write_text("x")
    assert path.stat().st_mode & 0o777 == 0o600


def test_the_rename_of_a_secret_is_on_the_disk_before_the_secret_is_used(tmp_path, monkeypatch):
    calls = []
    replace, sync = os.replace, os.fsync

    def note_replace(old, new):
        calls.append(("rename", Path(new).name))
        replace(old, new)

    def note_sync(descriptor):
        calls.append(("synchronise", os.fstat(descriptor).st_ino))
        sync(descriptor)

    monkeypatch.setattr(os, "replace", note_replace)
    monkeypatch.setattr(os, "fsync", note_sync)
    secret = node.kept_secret(tmp_path / "secret")
    assert len(secret) == 32
    assert node.kept_secret(tmp_path / "secret") == secret
    file, folder = (tmp_path / "secret").stat().st_ino, tmp_path.stat().st_ino
    after = calls[calls.index(("rename", "secret")) + 1 :]
    assert ("synchronise", file) in calls[: calls.index(("rename", "secret"))]
    assert ("synchronise", folder) in after


def test_a_journal_reads_while_its_thread_synchronises(tmp_path, monkeypatch):
    begun, go_on = threading.Event(), threading.Event()

    def slow(self):
        begun.set()
        assert go_on.wait(30)

    monkeypatch.setattr(disk.LockedFile, "synchronise", slow)
    kept = journal.FileJournal(tmp_path / "checkpoint")
    records = [journal.Opening("r", "a", "d", (), None, {}), journal.Received(0, {"b": b"x"})]
    kept.append(records[0])
    assert begun.wait(30)
    kept.append(records[1])
    kept.flush()
    assert list(kept.records()) == records
    go_on.set()
    kept.close()
