"""Names of remote models: URLs, and names on the Hub."""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError

HUB = "hf://"
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
"""Hosts for which http:// is as safe as https://."""

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_PART = r"[A-Za-z0-9_][\w.-]*"
_HUB_NAME = re.compile(
    rf"(?P<repository>{_PART}/{_PART})(?::(?P<file>[^:@]+))?(?:@(?P<revision>[\w][\w./-]*))?",
    re.ASCII,
)
_PAGE = re.compile(rf"/({_PART}/{_PART})(?:/(?:tree|blob)/([^/]+)(?:/(.+))?)?/?", re.ASCII)
_HUB_HOSTS = frozenset({"huggingface.co", "www.huggingface.co", "hf.co"})
_DIGEST = re.compile(r"sha256[=:]([0-9a-fA-F]{64})")
_NAME_FORM = "hf://owner/name, hf://owner/name:file or hf://owner/name:file@revision"


@dataclass(frozen=True, slots=True)
class HubName:
    """The name of a model on the Hub.

    Attributes:
        repository: `owner/name`.
        file: a file or folder of the repository, or a variant such as "q4"; "" if not specified.
        revision: a commit, tag or branch; "" for the newest.
    """

    repository: str
    file: str = ""
    revision: str = ""

    def __str__(self) -> str:
        """Return the name as users type it."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.repository}{f':{self.file}' if self.file else ''}{revision}"


@dataclass(frozen=True, slots=True)
class Url:
    """The URL of a file; `sha256` is the required digest of its content, or ""."""

    address: str
    sha256: str = ""

    @property
    def filename(self) -> str:
        """The last component of the URL's path, as a file name."""
        last = unquote(urlsplit(self.address).path).rpartition("/")[2]
        name = re.sub(r"[^\w.+-]", "_", last).lstrip(".")[-150:]
        return name or "model"


def is_there(path: Path) -> bool:
    """Return whether a path exists.

    Raises:
        ModelFileError: the name is not valid for files, or a parent folder cannot be read.
    """
    try:
        return path.exists()
    except (OSError, ValueError) as error:
        raise ModelFileError(
            f"'{str(path)[:200]}' cannot be read: {error}",
            hint="check the path and its permissions",
        ) from error


def is_download(model: object) -> bool:
    """Return whether a model is named by a URL or a name on the Hub rather than by a path.

    Raises:
        ModelFileError: it is an invalid URL or name.
    """
    if not isinstance(model, str):
        return False
    try:
        there = Path(model).exists()
    except (OSError, ValueError):  # impossible file name: its reader reports it
        return False
    return not there and read_name(model) is not None


def title_of(model: str | os.PathLike[str]) -> str:
    """Return the default title of a model: the last component without suffix."""
    name = read_name(model) if isinstance(model, str) and not is_there(Path(model)) else None
    if isinstance(name, HubName):
        return name.repository.rpartition("/")[2]
    path = Path(name.filename) if name is not None else Path(model)
    return (path.name or path.resolve().name) if path.is_dir() else path.stem


def read_name(text: str) -> HubName | Url | None:
    """Parse a URL or a Hub name; None for a path. Callers must exclude existing paths first.

    Raises:
        ModelFileError: the string is an invalid URL or Hub name, or could be either a name or
            a mistyped path.
    """
    if text.startswith(HUB):
        return _hub_name(text.removeprefix(HUB), text)
    if _SCHEME.match(text):
        return _address(text)
    match = _HUB_NAME.fullmatch(text)
    if match is None or _is_file_name(match["repository"]):
        return None
    owner = match["repository"].partition("/")[0]
    if Path(owner).is_dir():
        raise ModelFileError(
            f"no such file or folder: '{text}'",
            hint=f"there is a folder '{owner}' here, so this is read as a path; write {HUB}{text} "
            "for the model of the hub",
        )
    return _hub_name(text, text)


def with_revision(name: HubName, revision: str | None) -> HubName:
    """Return the name with a separately specified revision.

    Raises:
        InvalidInputError: the name already has a different one.
    """
    if revision is None or revision == name.revision:
        return name
    if name.revision:
        raise InvalidInputError(
            f"'{name}' has the revision '{name.revision}', but '{revision}' was also given",
            hint="give one of them",
        )
    return HubName(name.repository, name.file, revision)


def _is_file_name(text: str) -> bool:
    """Return whether a string has the suffix of a model file, and is thus a path."""
    from vkmnn.converter.foreign import has_model_suffix

    return has_model_suffix(text)


def _hub_name(text: str, shown: str) -> HubName:
    match = _HUB_NAME.fullmatch(text)
    parts = re.split(r"[/\\]", match["file"] or "") + (match["revision"] or "").split("/") \
        if match else [".."]  # fmt: skip
    if match is None or ".." in parts:
        raise ModelFileError(
            f"'{shown[:200]}' is not a valid name of a model on the Hub", hint=f"write {_NAME_FORM}"
        )
    file = (match["file"] or "").strip("/")
    return HubName(match["repository"], file, match["revision"] or "")


def _address(text: str) -> Url | HubName:
    try:
        parts = urlsplit(text)
        host = parts.hostname or ""
        _ = parts.port
    except ValueError as error:
        raise ModelFileError(f"'{text[:200]}' is not a valid URL: {error}") from error
    if "@" in parts.netloc:  # not shown: it may be a password
        raise ModelFileError(
            f"the URL for '{host}' contains a user name",
            hint="leave it out; access to the Hub is authorised by HF_TOKEN",
        )
    check_scheme(text)
    page = _PAGE.fullmatch(unquote(parts.path))
    if host in _HUB_HOSTS and page is not None:
        file = f":{page[3]}" if page[3] else ""
        return _hub_name(f"{page[1]}{file}{f'@{page[2]}' if page[2] else ''}", text)
    if re.search(r"[\s\x00-\x1f\x7f]", text):
        raise ModelFileError(
            f"the address {text[:200]!r} has white space in it", hint="write %20 for a space"
        )
    digest = _DIGEST.fullmatch(parts.fragment)
    if parts.fragment and digest is None:
        raise ModelFileError(
            f"'#{parts.fragment[:100]}' at the end of a URL is not a digest",
            hint="write #sha256= and 64 hexadecimal digits, or leave it out",
        )
    return Url(parts._replace(fragment="").geturl(), digest[1].lower() if digest else "")


def check_scheme(address: str) -> None:
    """Refuse URLs other than https://, and http:// on this machine.

    Raises:
        ModelFileError: the URL has another scheme.
    """
    parts = urlsplit(address)
    local = parts.scheme.lower() == "http" and (parts.hostname or "") in LOOPBACK
    if not parts.hostname or (parts.scheme.lower() != "https" and not local):
        what = f"{parts.scheme}://" if parts.hostname else "an address without a host"
        raise ModelFileError(
            f"'{address[:200]}' is not downloaded: {what} is not supported",
            hint="give a URL that begins with https://, or the path of the downloaded file",
        )
