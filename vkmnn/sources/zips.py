"""Zip archives of models, unpacked into the cache within limits."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import tempfile
import zipfile
import zlib
from pathlib import Path

from vkmnn.base.cache_files import NO_FOLDER, cache_dir, locked, own_folder
from vkmnn.errors import BudgetError, ModelFileError
from vkmnn.runtime import environment

MAX_MEMBERS = 10_000
MAX_RATIO = 100
"""Maximum ratio of unpacked size to archive size; weights shrink by a factor of 2 to 4."""

_FREE = 64 << 20
"""Unpacked size that is always allowed, in bytes."""
_CHUNK = 1 << 20
_WAIT_S = 3600.0
_ENCRYPTED = 1


def is_archive(path: Path) -> bool:
    """Return whether a file is a zip archive of models, unlike PyTorch's zip files."""
    if path.suffix.lower() != ".zip" or not path.is_file():
        return False
    from vkmnn.converter.foreign import is_plain_zip

    with path.open("rb") as file:
        return is_plain_zip(file.read(4096))


def unpacked(path: Path) -> Path:
    """Unpack an archive once, and return the folder with its content.

    Raises:
        ModelFileError: it is damaged, encrypted, or names files outside its folder.
        BudgetError: it holds too many files or bytes, or its compression ratio is
            implausible for a model.
    """
    try:
        status = path.stat()
        key = repr((os.path.realpath(path), status.st_size, status.st_mtime_ns))
        cache = cache_dir()
        if NO_FOLDER in (cache, *cache.parents):
            raise ModelFileError(
                f"'{path}' cannot be unpacked: there is no cache folder",
                hint="set VKMNN_CACHE_DIR to a folder of your own",
            )
        folder = cache / "unpacked" / hashlib.sha256(key.encode()).hexdigest()[:32]
        with locked(folder.parent / f"{folder.name}.lock", _WAIT_S):
            if not folder.is_dir():
                _unpack(path, folder, status.st_size)
            own_folder(folder)
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ModelFileError(
            f"'{path}' is a damaged zip archive: {error}", hint="download it again"
        ) from error
    except OSError as error:
        raise ModelFileError(
            f"'{path}' cannot be unpacked: {error}",
            hint="check the disk space and the folder VKMNN_CACHE_DIR",
        ) from error
    return _inner(folder)


def _inner(folder: Path) -> Path:
    """Return the only subfolder of a folder, or the folder itself."""
    found = list(folder.iterdir())
    return _inner(found[0]) if len(found) == 1 and found[0].is_dir() else folder


def _unpack(path: Path, folder: Path, nbytes: int) -> None:
    own_folder(folder.parent)
    part = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".part-"))
    try:
        with zipfile.ZipFile(path) as archive:
            members = [one for one in archive.infolist() if not one.is_dir()]
            room = _check(path, members, nbytes)
            for member in members:
                room = _extract(archive, member, part / _relative(path, member), room, path)
        part.replace(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise


def _check(path: Path, members: list[zipfile.ZipInfo], nbytes: int) -> int:
    """Check an archive's table of contents; return the number of bytes that may be unpacked."""
    if len(members) > MAX_MEMBERS:
        raise BudgetError(
            f"'{path}' holds {len(members):,} files, {MAX_MEMBERS:,} at most are unpacked",
            hint="unpack it yourself and pass the model inside",
        )
    room = min(environment.max_download(), max(_FREE, MAX_RATIO * nbytes))
    if sum(one.file_size for one in members) > room:
        raise _too_large(path)
    seen: set[str] = set()
    for member in members:
        relative = str(_relative(path, member)).casefold()
        if relative in seen:
            raise ModelFileError(
                f"'{path}' holds '{member.filename[:200]}' twice", hint="unpack it yourself"
            )
        seen.add(relative)
    return room


def _too_large(path: Path) -> BudgetError:
    return BudgetError(
        f"'{path}' exceeds the unpacked size allowed for its archive size",
        hint="if you trust it, unpack it yourself and pass the model inside; at most "
        f"{MAX_RATIO} times its size is unpacked, and what VKMNN_MAX_DOWNLOAD allows",
    )


def _relative(path: Path, member: zipfile.ZipInfo) -> Path:
    """Return the path of a member relative to the folder.

    Raises:
        ModelFileError: it would be outside, is not a regular file, or is encrypted.
    """
    name = member.orig_filename
    parts = re.split(r"[/\\]", name)
    outside = ".." in parts or parts[0] == "" or ":" in name or "\0" in name
    if outside or not all(parts):
        raise ModelFileError(
            f"'{path}' holds '{name[:200]}', which would be written outside its folder",
            hint="the archive may be malicious",
        )
    mode = member.external_attr >> 16
    if mode and not stat.S_ISREG(mode) and stat.S_IFMT(mode):
        raise ModelFileError(
            f"'{path}' holds '{name[:200]}', which is a link or a device rather than a file",
            hint="the archive may be malicious",
        )
    if member.flag_bits & _ENCRYPTED:
        raise ModelFileError(
            f"'{path}' is encrypted", hint="unpack it yourself and pass the model inside"
        )
    return Path(*parts)


def _extract(
    archive: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, room: int, path: Path
) -> int:
    """Write a member, whatever size its header states; return the remaining budget in bytes."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with archive.open(member) as source, target.open("xb") as file:
        while chunk := source.read(_CHUNK):
            room -= len(chunk)
            if room < 0:
                raise _too_large(path)
            file.write(chunk)
    return room
