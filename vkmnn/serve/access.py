"""Who may ask: keys, and which names and pages reach a server of this machine."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from vkmnn.errors import InvalidInputError
from vkmnn.serve.limits import HttpError

_ANY = "*"


@dataclass(frozen=True)
class Access:
    """Who may ask a server; the default is for one that listens on this machine alone.

    Attributes:
        keys: any of them lets a request in; none are needed if it is empty.
        local: whether only this machine reaches the server. Requests that name another host, or
            come from pages of other sites, are refused then: a page of any site may send requests
            to this machine, and read the answers once the name of its site leads here.
        hosts: more names by which it may be asked; "*" for any. They hold without `local`, too.
        origins: sites whose pages may ask, as `https://name:port`; "*" for any.
    """

    keys: frozenset[str] = frozenset()
    local: bool = True
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def check_place(self, headers: Headers) -> None:
        """Raise HttpError if a request names another host, or comes from another site's page."""
        host = headers.get("host", "")
        if host and not self._is_host(host):
            raise HttpError(403, "unknown_host", f"the server is not called '{host[:200]}'")
        origin = headers.get("origin")
        own = bool(host) and origin is not None and origin.partition("://")[2] == host
        if origin is not None and self.local and not (own or self.is_origin(origin)):
            raise HttpError(403, "unknown_origin", f"pages of {origin[:200]} may not ask")

    def check_key(self, headers: Headers) -> None:
        """Raise HttpError unless a request has one of the keys."""
        if not self.keys:
            return
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if kind.lower() == "bearer" else "")
        # All of them, whichever fits: the time tells nothing.
        fits = [hmac.compare_digest(given, _digest(one)) for one in self.keys]
        if not any(fits):
            text = "the request has no valid key; send the header Authorization: Bearer KEY"
            raise HttpError(401, "invalid_api_key", text, {"WWW-Authenticate": "Bearer"})

    def is_origin(self, origin: str | None) -> bool:
        """Tell whether pages of a site may read answers."""
        return origin is not None and bool({origin.lower(), _ANY} & self.origins)

    def _is_host(self, host: str) -> bool:
        if not (self.local or self.hosts):
            return True
        name = _name_of(host)
        return bool({name, host.lower(), _ANY} & self.hosts) or is_loopback(name)


def access_of(
    host: str,
    addresses: Iterable[str],
    keys: Iterable[str],
    hosts: Iterable[str],
    origins: Iterable[str],
) -> Access:
    """Return who may ask a server that was told to listen on a host, and does on addresses.

    Raises:
        InvalidInputError: a key or a name cannot be one.
    """
    names, sites, known = list(hosts), list(origins), list(keys)
    for site in sites:
        parts = urlsplit(site)
        if site != _ANY and (not parts.scheme or not parts.netloc or parts.path or parts.query):
            raise InvalidInputError(
                f"'{site}' is not the origin of pages",
                hint="write https://name or http://name:port",
            )
    for name in names:
        if not name or "/" in name:
            raise InvalidInputError(f"'{name}' is not the name of a host")
    for key in known:
        if not key.strip() or not key.isascii() or not key.isprintable():
            raise InvalidInputError("a key is a text of printable ASCII characters")
    local = all(is_loopback(address) for address in addresses)
    given = {name.lower() for name in ([*names, host] if local else names)}
    return Access(
        frozenset(key.strip() for key in known), local, frozenset(given),
        frozenset(site.lower() for site in sites),
    )  # fmt: skip


def read_keys(path: Path) -> list[str]:
    """Return the keys of a file: one a line; empty lines and lines that begin with # do not count.

    Raises:
        InvalidInputError: it cannot be read, or has none.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"the keys in '{path}' cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise InvalidInputError(
            f"'{path}' holds no key", hint="write one a line; without the option, none is needed"
        )
    return keys


def is_loopback(host: str) -> bool:
    """Tell whether a name or an address is this machine, for this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def proxies_of(given: Iterable[str]) -> list[str]:
    """Return the addresses and networks of proxies, checked.

    Raises:
        InvalidInputError: one is neither.
    """
    names = [name.strip() for one in given for name in one.split(",")]
    for name in names:
        try:
            if name != _ANY:
                ipaddress.ip_network(name)
        except ValueError as error:
            raise InvalidInputError(
                f"'{name}' is not the address of a proxy",
                hint="write 10.0.0.7, a network such as 10.0.0.0/8, or * for any",
            ) from error
    return names


def _name_of(host: str) -> str:
    """Return a Host header's name, without the port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower().rstrip(".") if not name.startswith("[") else name.lower().strip("[]")


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
