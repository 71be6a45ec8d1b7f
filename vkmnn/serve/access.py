"""Access control: API keys, and the Host and Origin headers that a server accepts."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Iterable, Mapping
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
    """Which requests a server accepts; the default suits a server on a loopback address.

    Attributes:
        keys: API keys, each of which authorises a request; requests need none if it is empty.
        local: whether the server listens on loopback addresses only. Requests for another host, and
            requests from pages of other sites, are then refused: any page can send requests to a
            loopback address, and can read the responses if its own name resolves to it.
        hosts: further accepted host names; "*" for any. Also checked without `local`.
        origins: sites whose pages may send requests, as `https://name:port`; "*" for any.
    """

    keys: frozenset[str] = frozenset()
    local: bool = True
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def check_place(self, headers: Headers) -> None:
        """Raise HttpError if the Host or the Origin of a request is not accepted."""
        host = headers.get("host", "")
        if host and not self._is_host(host):
            raise HttpError(
                403, "unknown_host", f"the server does not accept the host '{host[:200]}'"
            )
        origin = headers.get("origin")
        own = bool(host) and origin is not None and origin.partition("://")[2] == host
        if origin is not None and self.local and not (own or self.is_origin(origin)):
            raise HttpError(
                403,
                "unknown_origin",
                f"the server does not accept requests from pages of {origin[:200]}",
            )

    def check_key(self, headers: Mapping[str, str]) -> bytes | None:
        """Return the digest of a request's key; None if none is needed.

        Raises:
            HttpError: keys are needed, and the request has none of them.
        """
        if not self.keys:
            return None
        kind, _, key = headers.get("authorization", "").partition(" ")
        given = _digest(key.strip() if kind.lower() == "bearer" else "")
        # Compare with every key: the time must not tell which one matches.
        fits = [hmac.compare_digest(given, _digest(one)) for one in self.keys]
        if not any(fits):
            text = "the request has no valid key; send the header Authorization: Bearer KEY"
            raise HttpError(401, "invalid_api_key", text, {"WWW-Authenticate": "Bearer"})
        return given

    def is_origin(self, origin: str | None) -> bool:
        """Return whether pages of an origin may send requests and read responses."""
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
    """Return the access rules of a server.

    Args:
        host: the host name or address to listen on.
        addresses: the addresses that it listens on.
        keys: API keys.
        hosts: further host names that are accepted.
        origins: sites whose pages may send requests.

    Raises:
        InvalidInputError: a key, a host name or an origin is malformed.
    """
    names, sites, known = list(hosts), list(origins), list(keys)
    for site in sites:
        parts = urlsplit(site)
        if site != _ANY and (not parts.scheme or not parts.netloc or parts.path or parts.query):
            raise InvalidInputError(
                f"'{site}' is not an origin",
                hint="write https://name or http://name:port",
            )
    for name in names:
        if not name or "/" in name:
            raise InvalidInputError(f"'{name}' is not a host name")
    for key in known:
        if not key.strip() or not key.isascii() or not key.isprintable():
            raise InvalidInputError("a key is one or more printable ASCII characters")
    local = all(is_loopback(address) for address in addresses)
    given = {name.lower() for name in ([*names, host] if local else names)}
    return Access(
        frozenset(key.strip() for key in known), local, frozenset(given),
        frozenset(site.lower() for site in sites),
    )  # fmt: skip


def read_keys(path: Path) -> list[str]:
    """Read the API keys in a file, one per line; empty lines and lines with # are skipped.

    Raises:
        InvalidInputError: the file cannot be read, or has no key.
    """
    try:
        lines = [line.strip() for line in path.read_text("utf-8-sig").splitlines()]
    except (OSError, ValueError) as error:
        raise InvalidInputError(f"the keys in '{path}' cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise InvalidInputError(
            f"'{path}' holds no key",
            hint="write one key per line, or leave the option out: then requests need none",
        )
    return keys


def is_loopback(host: str) -> bool:
    """Return whether a host name or an address is a loopback one."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def proxies_of(given: Iterable[str]) -> list[str]:
    """Return validated addresses and networks of proxies, from lists separated by commas.

    Raises:
        InvalidInputError: one is neither an address nor a network.
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
    """Return the name in a Host header, without the port."""
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() else host
    return name.lower().rstrip(".") if not name.startswith("[") else name.lower().strip("[]")


def _digest(key: str) -> bytes:
    return sha256(key.encode("utf-8", "surrogateescape")).digest()
