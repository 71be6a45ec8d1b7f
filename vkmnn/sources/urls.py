"""Files from URLs, downloaded once into the cache."""

from __future__ import annotations

import hashlib
import logging
import ssl
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urljoin, urlsplit, urlunsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from vkmnn._version import __version__
from vkmnn.base.cache_files import NO_FOLDER, cache_dir, locked, own_folder
from vkmnn.base.records import dataclass
from vkmnn.base.whole_files import replacing
from vkmnn.errors import BudgetError, ModelFileError
from vkmnn.runtime import environment
from vkmnn.sources.companions import companions
from vkmnn.sources.names import Url, check_scheme

_log = logging.getLogger(__name__)

Report = Callable[[int, int], None]
"""Called with the bytes received and the total, which is 0 if unknown."""

_TIMEOUT_S = 30.0
_CHUNK = 1 << 20
_HEAD = 4096
_WAIT_S = 3600.0
_NOT_THERE = (403, 404, 410)
_REASONS = {
    401: "it asks for a login",
    403: "access is forbidden",
    404: "there is no such file",
    410: "the file is gone",
    429: "too many requests; try again later",
}


@dataclass(frozen=True, slots=True)
class _Missing:
    """The server's response for a file that does not exist."""

    reason: str


def fetch(url: Url, report: Report | None = None, *, again: bool = False) -> Path:
    """Return the local file of a URL, with its companion files next to it.

    Args:
        url: the URL. Cached downloads are used without asking the server.
        report: called with the progress.
        again: download it again.

    Raises:
        ModelFileError: it cannot be downloaded, the content has another digest, is a web page, or
            names files outside its folder.
        BudgetError: it exceeds `VKMNN_MAX_DOWNLOAD`.
    """
    folder = _folder_of(url)
    file = folder / url.filename
    done = folder / ".complete"
    if done.is_file() and file.is_file() and not again:
        return file
    if environment.offline():
        raise ModelFileError(
            f"'{url.address}' is not in the cache, and downloads are disabled",
            hint="unset VKMNN_OFFLINE and HF_HUB_OFFLINE, or give a path",
        )
    try:
        with locked(folder / ".lock", _WAIT_S):
            if not done.is_file() or not file.is_file() or again:
                _fetch_all(url, file, report)
                done.touch()
    except OSError as error:
        raise ModelFileError(
            f"'{url.address}' cannot be stored: {error}",
            hint="check the disk space and the folder VKMNN_CACHE_DIR",
        ) from error
    return file


def _folder_of(url: Url) -> Path:
    cache = cache_dir()
    if NO_FOLDER in (cache, *cache.parents):
        raise ModelFileError(
            f"'{url.address}' cannot be downloaded: there is no cache folder",
            hint="set VKMNN_CACHE_DIR to a folder of your own",
        )
    key = f"{url.address}\n{url.sha256}"
    return cache / "downloads" / hashlib.sha256(key.encode()).hexdigest()[:32]


def _fetch_all(url: Url, file: Path, report: Report | None) -> None:
    room = environment.max_download()
    own_folder(file.parent)
    got = _download(url, file, room, report)
    if isinstance(got, _Missing):
        raise _refused(url.address, got.reason)
    room -= got
    for name, needed in companions(file):
        target = file.parent / name
        target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        beside = Url(_beside(url.address, name))
        got = _download(beside, target, room, report)
        if isinstance(got, _Missing):
            if needed:
                raise _refused(beside.address, f"{got.reason}; '{file.name}' needs it")
            continue
        room -= got


def _beside(address: str, name: str) -> str:
    """Return the URL of a sibling file, with the same query, a signature for example."""
    parts = urlsplit(address)
    path = urljoin(parts.path, quote(name))
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _download(url: Url, target: Path, room: int, report: Report | None) -> int | _Missing:
    """Download a file; return its bytes."""
    _log.info("downloading %s", url.address)
    request = Request(url.address, headers={"User-Agent": f"vkmnn/{__version__}"})
    try:
        with build_opener(_Redirects()).open(request, timeout=_TIMEOUT_S) as answer:
            return _store(answer, url, target, room, report)
    except HTTPError as error:
        reason = _REASONS.get(error.code, f"the server answers {error.code} {error.reason}")
        error.close()
        if error.code in _NOT_THERE:
            return _Missing(reason)
        raise _refused(url.address, reason) from error
    except URLError as error:
        raise _refused(url.address, str(error.reason)) from error
    except (HTTPException, TimeoutError, ConnectionError, ssl.SSLError) as error:
        raise _refused(url.address, str(error) or type(error).__name__) from error


def _store(answer: Any, url: Url, target: Path, room: int, report: Report | None) -> int:
    length = answer.headers.get("Content-Length", "")
    total = int(length) if length.isdigit() else 0
    if total > room:
        raise _too_large(url.address, f"it has {total:,} bytes")
    digest = hashlib.sha256()
    count = 0
    with replacing(target) as file:
        while chunk := answer.read(_CHUNK):
            if not count:
                _check_start(chunk[:_HEAD], url)
            count += len(chunk)
            if count > room:
                raise _too_large(url.address, f"it has more than {room:,} bytes")
            digest.update(chunk)
            file.write(chunk)
            if report is not None:
                report(count, total)
        _check_end(url, count, total, digest.hexdigest())
    return count


def _check_start(head: bytes, url: Url) -> None:
    """Refuse web pages and similar content that servers send instead of files."""
    from vkmnn.converter.foreign import mistaken_download

    kind = mistaken_download(head)
    if kind is not None:
        raise ModelFileError(f"'{url.address}' is {kind.name}, not a model", hint=kind.advice)


def _check_end(url: Url, count: int, total: int, digest: str) -> None:
    if not count or count < total:
        raise _refused(url.address, f"it ended after {count:,} of {total:,} bytes")
    if url.sha256 and url.sha256 != digest:
        raise ModelFileError(
            f"'{url.address}' has the digest sha256={digest}, not {url.sha256}",
            hint="the file has changed, or is a different one",
        )


def _refused(address: str, reason: str) -> ModelFileError:
    return ModelFileError(
        f"'{address}' cannot be downloaded: {reason}",
        hint="check the URL and the network connection",
    )


def _too_large(address: str, what: str) -> BudgetError:
    return BudgetError(
        f"'{address}' is not downloaded: {what}",
        hint="VKMNN_MAX_DOWNLOAD sets the largest size, 64 GiB by default",
    )


class _Redirects(HTTPRedirectHandler):
    """Follows redirects to permitted URLs only."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> Request | None:
        """Return the next request, or raise ModelFileError."""
        check_scheme(newurl)
        if urlsplit(req.full_url).scheme == "https" and urlsplit(newurl).scheme != "https":
            raise ModelFileError(f"'{req.full_url}' leads to '{newurl}', which is not encrypted")
        return super().redirect_request(req, fp, code, msg, headers, newurl)
