"""Listening sockets, and HTTP connections with a deadline for the head of a request."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import signal
import socket
import struct
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import h11
import uvicorn
from uvicorn.config import LOGGING_CONFIG
from uvicorn.protocols.http.h11_impl import H11Protocol

from vkmnn.errors import InvalidInputError
from vkmnn.serve.app import App
from vkmnn.serve.limits import KEEP_ALIVE_S, SLOWEST


def bound(host: str, port: int) -> list[socket.socket]:
    """Return sockets bound to a host, one for each of its addresses; they do not listen yet.

    Raises:
        InvalidInputError: the host is unknown, or the port is in use.
    """
    made: list[socket.socket] = []
    try:
        flags = socket.AI_PASSIVE
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=flags)
        for family, kind, protocol, _, address in dict.fromkeys(found):
            # Port 0 stands for any free port, which has to be the same for all addresses.
            taken = (address[0], made[0].getsockname()[1], *address[2:]) if made else address
            made.append(_socket(family, kind, protocol, taken))
    except (OSError, ValueError, OverflowError) as error:
        for one in made:
            one.close()
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidInputError(
            f"the server cannot listen on {host}:{port}: {reason}",
            hint="give an address of this machine as --host, and a free port as --port",
        ) from error
    return made


def _socket(family: int, kind: int, protocol: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, kind, protocol)
    try:
        with suppress(OSError):
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError:
        made.close()
        raise
    return made


_SO_ATTACH_FILTER = 26
"""Linux's option for a socket's packet filter (asm-generic/socket.h), which `socket` lacks."""

_DROP = struct.pack("=HBBI", 0x06, 0, 0, 0)
"""A filter of one instruction, "return 0" (linux/filter.h): every packet is dropped."""


def _ignore_newcomers(port: socket.socket) -> None:
    """Let a listening socket ignore clients that begin to connect: they try again, and are refused.

    Only Linux can; elsewhere, clients that connect in the moment before the port closes are reset.
    """
    if sys.platform == "linux":
        program = ctypes.create_string_buffer(_DROP, len(_DROP))
        filters = struct.pack("HP", 1, ctypes.addressof(program))
        with suppress(OSError):
            port.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, filters)


def _accepted(port: socket.socket) -> list[socket.socket]:
    """Accept every client that waits, and close the port before another one can connect."""
    plugs: list[socket.socket] = []
    with port, suppress(OSError):  # BlockingIOError: nobody waits
        _ignore_newcomers(port)
        port.setblocking(False)
        while True:
            with suppress(ConnectionAbortedError):  # this client has left; others wait
                plugs.append(port.accept()[0])
    return plugs


_LINGER_S = 2.0
"""Seconds for which the rest of a refused request is read and dropped."""

_LAST_S = 0.5
"""Seconds after closing the port for which requests on open connections are still accepted."""

_TURN_S = 0.02
"""Seconds in which the event loop reads what has arrived on all connections."""

_OTHER_FILES = 128
"""Open files that are not connections: models, devices, caches."""

_USUAL_FILES = 2048


class Server(uvicorn.Server):
    """A server that reports that it is stopping before it closes its sockets.

    Args:
        config: uvicorn's.
        app: the application.
        delay_s: seconds for which it still accepts requests after the signal.
    """

    def __init__(self, config: uvicorn.Config, app: App, delay_s: float) -> None:
        super().__init__(config)
        self._app = app
        self._delay_s = delay_s

    async def _close_ports(self) -> None:
        """Stop listening, and serve the clients that wait to be accepted: closing resets those."""
        ports = [port.dup() for server in self.servers for port in server.sockets]
        for server in self.servers:
            server.close()
        waiting = [plug for port in ports for plug in _accepted(port)]
        loop = asyncio.get_running_loop()
        for plug in waiting:
            with suppress(OSError):
                await loop.connect_accepted_socket(self._connection, plug)

    async def _last_requests(self) -> None:
        """Wait for the requests of clients that have connected, which closing would reset.

        With a delay, wait for further requests on all connections: they may be on their way.
        """
        begin = time.monotonic()
        waited = 0.0
        while not self.force_exit and waited < _LAST_S:
            await asyncio.sleep(_TURN_S)
            waited = time.monotonic() - begin
            mine = (one for one in self.server_state.connections if isinstance(one, _Connection))
            if all(one.cycle for one in mine) and waited >= self._delay_s:
                return

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Become unready, wait until balancers have noticed, then finish what was accepted."""
        self._app.begin_stop()
        end = time.monotonic() + self._delay_s
        while time.monotonic() < end and not self.force_exit:
            await asyncio.sleep(0.1)
        await self._close_ports()
        await self._last_requests()
        drain_s = self.config.timeout_graceful_shutdown or 0
        await asyncio.gather(super().shutdown(sockets), self._app.drain(drain_s))
        # uvicorn raises the signal again, which would end the process before models are closed.
        self._captured_signals = [s for s in self._captured_signals if s != signal.SIGTERM]


def server_of(
    app: App, drain_s: int = 30, proxies: Sequence[str] = (), delay_s: float = 0
) -> uvicorn.Server:
    """Return a server for an application; pass the sockets to its `run`.

    Args:
        app: the application.
        drain_s: seconds that requests in progress have when the server stops.
        proxies: addresses and networks whose X-Forwarded-For is trusted; "*" for all.
        delay_s: seconds between becoming unready and refusing connections.
    """

    class Connection(_Connection):
        served = app
        resting: ClassVar[OrderedDict[_Connection, None]] = OrderedDict()
        most = min(app.limits.connections, _open_files() - _OTHER_FILES)

    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_level="error",  # clients' mistakes are counted, and could fill the log
        log_config=None if logging.getLogger("uvicorn").handlers else LOGGING_CONFIG,
        server_header=False,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
        timeout_graceful_shutdown=drain_s,
        timeout_keep_alive=KEEP_ALIVE_S,
    )
    return Server(config, app, delay_s)


def _open_files() -> int:
    """Allow this process as many open files as the system lets it have, and return the number."""
    if sys.platform == "win32":
        return _USUAL_FILES
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1 << 16 if hard == resource.RLIM_INFINITY else min(hard, 1 << 16)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
    return 1 << 16 if soft == resource.RLIM_INFINITY else soft


class _Gathered:
    """A transport that sends what one turn of the event loop writes at once: head and body.

    Large writes are sent immediately, so that the transport sees when the client reads too slowly.
    """

    def __init__(
        self, transport: Any, loop: asyncio.AbstractEventLoop, is_sending: Callable[[], bool]
    ) -> None:
        self._transport = transport
        self._loop = loop
        self._is_sending = is_sending
        self._parts: list[bytes] = []
        self.lingers = False

    def write(self, data: bytes) -> None:
        """Send data before the next turn of the loop."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)
        if len(data) > SLOWEST:
            self._flush()

    def _flush(self) -> None:
        if self._parts:
            data = b"".join(self._parts)
            self._parts.clear()
            self._transport.write(data)

    def close(self) -> None:
        """Send the rest, then close.

        If the client is still sending, read on for a while: otherwise the system would discard the
        response with what has not been read.
        """
        self._flush()
        if self._transport.is_closing() or self.lingers:
            return
        if not self._is_sending():
            self._transport.close()
            return
        self.lingers = True
        try:
            self._transport.write_eof()
        except OSError:  # the client has left, which nothing noticed while nothing was read
            self._transport.abort()
            return
        self._transport.resume_reading()
        self._loop.call_later(_LINGER_S, self._transport.close)

    def is_closing(self) -> bool:
        """Return whether nothing more can be sent."""
        return self.lingers or bool(self._transport.is_closing())

    def __getattr__(self, name: str) -> Any:
        """Return anything else from the transport itself."""
        return getattr(self._transport, name)


class _Connection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time."""

    served: App
    resting: ClassVar[OrderedDict[_Connection, None]]
    most: int
    _late: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.gathered = _Gathered(transport, self.loop, self._is_sending)
        super().connection_made(self.gathered)  # type: ignore[arg-type]
        self._expect()
        if len(self.connections) > self.most:
            oldest = next(iter(self.resting))  # this one at the latest
            oldest.transport.abort()
            self.resting.pop(oldest)

    def _is_sending(self) -> bool:
        """Return whether the client may be in the middle of a request."""
        states = (h11.SEND_BODY, h11.ERROR)
        return self.conn.their_state in states or bool(self.conn.trailing_data[0])

    def data_received(self, data: bytes) -> None:
        if self.gathered.lingers:
            return
        super().data_received(data)
        self._expect()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self.resting.pop(self, None)
        if self._writing is not None:
            self._writing.cancel()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._look_at_writing(None)

    def _look_at_writing(self, before: int | None) -> None:
        """Abort the connection unless the client has read enough since the last look."""
        left = self.transport.get_write_buffer_size()
        seconds = self.served.limits.body_s
        self._writing = None
        if before is not None and left > before - seconds * SLOWEST and left:
            self.transport.abort()
        elif left:
            self._writing = self.loop.call_later(seconds, self._look_at_writing, left)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "invalid_http", msg)

    def _expect(self) -> None:
        """Start the deadline if the client has to send the rest of a request; else stop it.

        The application has a separate deadline for the body of a request that it answers.
        """
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request
        answered = cycle is None or cycle.response_complete
        idle = self.conn.their_state is h11.IDLE and not self.conn.trailing_data[0]
        if answered:
            self.resting[self] = None
            self.resting.move_to_end(self)
        else:
            self.resting.pop(self, None)
        if not answered or (idle and cycle is not None):  # uvicorn ends idle connections
            self._stop_waiting()
        elif self._late is None:
            self._late = self.loop.call_later(self.served.limits.header_s, self._give_up)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _give_up(self) -> None:
        if self.transport.is_closing():
            return
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            seconds = self.served.limits.header_s
            text = f"the head of the request did not arrive within {seconds:g} s"
            self._refuse(408, "head_too_slow", text)
        else:
            self.transport.close()

    def _refuse(self, status: int, code: str, text: str) -> None:
        """Send an error response, and close the connection."""
        body = json.dumps(self.served.refuse(status, code, text)).encode()
        headers = [("content-type", "application/json"), ("content-length", str(len(body))),
                   ("connection", "close")]  # fmt: skip
        with suppress(h11.LocalProtocolError):  # a response has begun
            head = self.conn.send(h11.Response(status_code=status, headers=headers))
            rest = self.conn.send(h11.Data(data=body))
            self.transport.write((head or b"") + (rest or b""))
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True  # the application may still answer what has begun
            cycle.message_event.set()
        self.transport.close()
