"""Caches: no foreign content, no hanging, nothing left behind, none without a home."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from vkmnn.base import cache_files
from vkmnn.base.cache_files import NO_FOLDER, cache_dir, locked, own_folder, read_file, write_file
from vkmnn.base.user_folders import data_folder

ROOT = Path(__file__).resolve().parents[2]

posix = pytest.mark.skipif(sys.platform == "win32", reason="of POSIX")


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file"
    write_file(path, b"content")
    assert read_file(path, 100) == b"content"
    with pytest.raises(OSError, match="larger than 3"):
        read_file(path, 3)
    assert [item.name for item in path.parent.iterdir()] == ["file"]


@posix
def test_the_folder_is_the_users_alone(tmp_path: Path) -> None:
    write_file(tmp_path / "new" / "file", b"")
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("what", ["folder", "file"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_what_others_may_write_is_not_trusted(tmp_path: Path, what: str, mode: int) -> None:
    path = tmp_path / "new" / "file"
    write_file(path, b"content")
    changed = path if what == "file" else path.parent
    changed.chmod(0o700 | mode)
    with pytest.raises(OSError, match="others may write"):
        read_file(path, 100)


@posix
def test_another_users_file_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / "file"
    write_file(path, b"content")
    owner = os.getuid()
    monkeypatch.setattr(cache_files.os, "getuid", lambda: owner + 1)
    if owner == 0:  # root is trusted
        assert read_file(path, 100) == b"content"
    else:
        with pytest.raises(OSError, match="another user"):
            read_file(path, 100)


@posix
@pytest.mark.parametrize("kind", ["pipe", "link to a device", "folder"])
def test_what_is_no_file_is_refused_at_once(tmp_path: Path, kind: str) -> None:
    (tmp_path / "new").mkdir(mode=0o700)
    path = tmp_path / "new" / "file"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")
    with pytest.raises(OSError):  # noqa: PT011 - in words of the system or ours
        read_file(path, 100)


def test_a_full_disk_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="no space"):
        write_file(tmp_path / "file", b"content")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("platform", "cache", "data"),
    [
        ("unix.Unix", ".cache/vkmnn", ".local/share/vkmnn"),
        ("macos.MacOS", "Library/Caches/vkmnn", "Library/Application Support/vkmnn"),
        ("windows.Windows", "Local/vkmnn/Cache", "Local/vkmnn"),
    ],
)
def test_folders_of_each_platform(
    platform: str, cache: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = platform.split(".")
    folders = importlib.import_module(f"platformdirs.{module}")
    monkeypatch.setattr(platformdirs, "PlatformDirs", getattr(folders, name))
    monkeypatch.setattr(
        "platformdirs.windows.get_win_folder", lambda _: str(tmp_path / "Local"), raising=False
    )
    for variable in ("VKMNN_CACHE_DIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / cache
    assert data_folder() == tmp_path / data


def test_no_home_is_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def nobody(*_: object) -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("VKMNN_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(cache_files, "cache_folder", nobody)
    cache_files._warn_once.cache_clear()
    with caplog.at_level(logging.WARNING, "vkmnn"):
        assert cache_dir() == cache_dir() == NO_FOLDER
    assert len(caplog.records) == 1
    monkeypatch.setattr(Path, "expanduser", nobody)
    monkeypatch.setenv("VKMNN_CACHE_DIR", "~nobody/x")
    assert cache_dir() == NO_FOLDER
    write_file(NO_FOLDER / "pipelines" / "file", b"content")
    with pytest.raises(FileNotFoundError):
        read_file(NO_FOLDER / "pipelines" / "file", 100)


@posix
def test_a_folder_that_others_may_write_is_not_taken(tmp_path: Path) -> None:
    own_folder(tmp_path / "new")
    own_folder(tmp_path / "new")
    (tmp_path / "new").chmod(0o777)
    with pytest.raises(OSError, match="others may write"):
        own_folder(tmp_path / "new")
    with pytest.raises(OSError, match="others may write"), locked(tmp_path / "new" / "lock", 1):
        pytest.fail("locked")
    assert list((tmp_path / "new").iterdir()) == []


HOLD = """
import os, sys, time
from pathlib import Path
from vkmnn.base.cache_files import NO_FOLDER, cache_dir, locked, own_folder, read_file, write_file
with locked(Path(sys.argv[1]), 10):
    if sys.argv[2] == "fork" and os.fork() == 0:
        os.close(1)
        time.sleep(3)
        os._exit(0)
    print("locked", flush=True)
    sys.stdin.readline()
print("left", flush=True)
"""


def hold(path: Path, how: str = "alone") -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path), how],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout
    assert child.stdout.readline() == "locked\n"
    return child


@pytest.mark.parametrize("end", ["leaves", "is killed"])
def test_one_process_at_a_time(tmp_path: Path, end: str) -> None:
    path = tmp_path / "new" / "lock"
    with hold(path) as child:
        with pytest.raises(TimeoutError, match="locked for"), locked(path, 0.05):
            pytest.fail("locked twice")
        if end == "leaves":
            child.communicate("\n")
        else:
            child.kill()
        with locked(path, 10), pytest.raises(TimeoutError), locked(path, 0.05):
            pytest.fail("locked twice")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_holds_no_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with hold(path, "fork") as child:
        assert child.stdin
        assert child.stdout
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "left\n"
        with locked(path, 1.0):  # the child's child is there for longer
            pass


def test_without_locks_all_come_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fcntl = pytest.importorskip("fcntl")

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tmp_path / "lock", 1), locked(tmp_path / "lock", 1):
        pass
    with locked(NO_FOLDER / "lock", 1), locked(NO_FOLDER / "lock", 1):
        pass
