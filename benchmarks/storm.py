"""A storm of clients that ask, leave or send nonsense, with long prompts every other round."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import re
import string
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.load import LENGTH

ROUNDS = 10
"""Every other one has long prompts, so that whatever else slows the machine meets both kinds."""

_WARM = 2  # rounds whose times do not count
_LONG_CLIENTS = 2
_WORDS = ("the quick", "brown fox", "jumps over", "a lazy dog")
_TOKENS = 8
_PATIENCE_S = 300.0
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class State:
    """Bytes of memory, open files and threads of a process."""

    memory: int
    files: int
    threads: int


@dataclass(slots=True)
class Storm:
    """The outcome of a storm.

    Attributes:
        clients: how many asked.
        seconds: for how long.
        quiet_ms: times of answers to short prompts in rounds without long ones.
        long_ms: the same if a part of the time is in a round with them.
        counts: requests by kind and outcome.
        faults: the first of the answers that were lost, cut off, or not as expected.
        states: of the server, each second; empty where there is no /proc.
        rest: of the server before and after the storm.
        stuck: jobs that the server has after all clients have left.
    """

    clients: int
    seconds: float
    quiet_ms: list[float] = field(default_factory=list)
    long_ms: list[float] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    rest: list[State] = field(default_factory=list)
    stuck: float = 0.0

    @property
    def ratio(self) -> float:
        """The 99th percentile of short prompts beside long ones, over that without; 0 if unknown.

        There are no times without long prompts if answers take longer than a round.
        """
        quiet = part_of(self.quiet_ms, 0.99)
        return part_of(self.long_ms, 0.99) / quiet if quiet else 0.0

    @property
    def growth(self) -> float:
        """Bytes of memory that the second half of the storm has added; the first fills caches."""
        memory = [state.memory for state in self.states[len(self.states) // 2 :]]
        some = len(memory) // 4 or 1
        return part_of(memory[-some:], 0.5) - part_of(memory[:some], 0.5)

    def summary(self) -> dict[str, Any]:
        """Return the outcome in JSON's types, without single times and states."""
        times = {
            f"{name}_{kind}": part_of(values, part)
            for kind, values in (("quiet_ms", self.quiet_ms), ("long_ms", self.long_ms))
            for name, part in (("p50", 0.5), ("p99", 0.99))
        }
        rest = [[state.memory, state.files, state.threads] for state in self.rest]
        return {
            "clients": self.clients, "seconds": self.seconds, **times, "ratio": self.ratio,
            "counts": dict(self.counts), "faults": self.faults, "stuck": self.stuck, "rest": rest,
            "growth_bytes": self.growth,
            "memory_bytes": [state.memory for state in self.states],
        }  # fmt: skip


def part_of(values: Sequence[float], part: float) -> float:
    """Return a quantile; 0 if there are no values."""
    return float(sorted(values)[int(len(values) * part)]) if values else 0.0


def state_of(process: int) -> State | None:
    """Return the state of a process; None where there is no /proc."""
    try:
        told = Path(f"/proc/{process}/status").read_text("utf-8")
        files = sum(1 for _ in Path(f"/proc/{process}/fd").iterdir())
    except OSError:
        return None
    memory, threads = (re.search(rf"{name}:\s+(\d+)", told) for name in ("VmRSS", "Threads"))
    return State(int(memory[1]) * 1024, files, int(threads[1])) if memory and threads else None


def request_of(path: str, body: bytes, more: str = "") -> bytes:
    """Return a request that sends a body."""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


def text_request(prompt: str, tokens: int, stream: bool = False) -> bytes:
    """Return a request for a text."""
    body = {"model": "m", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "stream": stream}  # fmt: skip
    return request_of("/v1/completions", json.dumps(body).encode())


class _Line:
    """A connection that is opened when it is needed."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, data: bytes) -> asyncio.StreamReader:
        """Send bytes; return the stream of the response."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self._port)
        self.streams[1].write(data)
        await self.streams[1].drain()
        return self.streams[0]

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return the status and the body of the response."""
        reader = await self.send(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = LENGTH.search(head)
        body = await reader.readexactly(int(length[1]) if length else 0)
        return int(head.split(None, 2)[1]), body

    def leave(self) -> None:
        """Break the connection off."""
        if self.streams is not None:
            self.streams[1].transport.abort()
            self.streams = None


Act = Callable[[_Line, int], Awaitable[str]]
"""What a client does once; returns the outcome."""


class _Crowd:
    """The clients."""

    def __init__(self, port: int, storm: Storm, network: bytes, characters: int) -> None:
        self._port = port
        self._storm = storm
        self._network = network
        self._characters = characters
        self._begin = time.perf_counter()
        self._expected: dict[str, str] = {}
        self._random = random.Random(0)

    async def all(self) -> None:
        """Run every client until its time is over: of ten, seven ask, and one leaves."""
        kinds: tuple[Act, ...] = (*[self.short] * 7, self.leaving, self.networks, self.nonsense)
        acts = [*itertools.islice(itertools.cycle(kinds), self._storm.clients),
                *[self.long] * _LONG_CLIENTS]  # fmt: skip
        await asyncio.gather(*(self._client(act, number) for number, act in enumerate(acts)))

    def _round(self) -> int:
        return int((time.perf_counter() - self._begin) * ROUNDS / self._storm.seconds)

    async def _client(self, act: Act, number: int) -> None:
        line, storm = _Line(self._port), self._storm
        name = act.__name__  # type: ignore[attr-defined]
        while self._round() < ROUNDS:
            try:
                outcome = await asyncio.wait_for(act(line, number), _PATIENCE_S)
            except (OSError, EOFError, ValueError, LookupError, asyncio.TimeoutError) as error:
                outcome = "fault"
                if len(storm.faults) < _SHOWN:
                    storm.faults.append(f"{name}: {type(error).__name__}: {error}"[:300])
                line.leave()
            storm.counts[f"{name}: {outcome}"] += 1
            if outcome == "refused":
                await asyncio.sleep(1)  # as the server asks
        line.leave()

    async def short(self, line: _Line, number: int) -> str:
        """Ask for a text; it has to be what everybody else gets."""
        prompt = _WORDS[number % len(_WORDS)]
        start, during = time.perf_counter(), self._round()
        status, body = await line.ask(text_request(prompt, _TOKENS))
        taken = (time.perf_counter() - start) * 1e3
        if status == 503:
            return "refused"
        text = json.loads(body)["choices"][0]["text"]
        if self._expected.setdefault(prompt, text) != text:
            raise ValueError(f"{prompt!r} is continued by {text!r}")
        rounds = range(during, self._round() + 1)
        if during >= _WARM:
            is_quiet = all(one % 2 == 0 for one in rounds)
            (self._storm.quiet_ms if is_quiet else self._storm.long_ms).append(taken)
        return "answered"

    async def long(self, line: _Line, number: int) -> str:
        """Ask for the continuation of a long prompt in every other round."""
        if not self._round() % 2:
            await asyncio.sleep(self._storm.seconds / ROUNDS / 20)
            return "waited"
        prompt = "".join(self._random.choices(string.ascii_letters, k=self._characters))
        status, body = await line.ask(text_request(prompt, _TOKENS))
        if status == 503:
            return "refused"
        json.loads(body)["choices"][0]
        return "answered"

    async def leaving(self, line: _Line, number: int) -> str:
        """Leave while a request is sent, while it waits, or in the middle of its text."""
        request = text_request(_WORDS[0], 500, stream=True)
        how = self._random.randrange(3)
        reader = await line.send(request[: len(request) // 2] if how == 0 else request)
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(1 << 16), 0.05 if how < 2 else _PATIENCE_S)
        line.leave()
        await asyncio.sleep(0.2)
        return ("in the request", "while waiting", "in the text")[how]

    async def networks(self, line: _Line, number: int) -> str:
        """Run a network, or leave meanwhile."""
        if self._random.randrange(4) == 0:
            await line.send(self._network)
            line.leave()
            return "left"
        status, body = await line.ask(self._network)
        if status not in (200, 503):
            raise ValueError(f"status {status}: {body[:100]!r}")
        return "answered" if status == 200 else "refused"

    async def nonsense(self, line: _Line, number: int) -> str:
        """Send a body that is refused."""
        for body in (b"\xff\x00{", b"[" * 5000, b'{"model": "m", "prompt": {"a": 1}}'):
            status, told = await line.ask(request_of("/v1/completions", body))
            if status != 400 or not json.loads(told)["error"]["code"]:
                raise ValueError(f"status {status}: {told[:100]!r}")
        await asyncio.sleep(0.1)
        return "answered"


async def _watched(process: int, storm: Storm) -> None:
    while True:
        if (state := state_of(process)) is not None:
            storm.states.append(state)
        await asyncio.sleep(1)


async def _jobs(port: int) -> float:
    """Return the active and waiting jobs of a server."""
    line = _Line(port)
    _, page = await line.ask(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    line.leave()
    found = re.findall(r"^vkmnn_(?:active|waiting)\S* (\S+)$", page.decode(), re.MULTILINE)
    return sum(map(float, found))


async def _storm(port: int, process: int, storm: Storm, network: bytes, characters: int) -> None:
    line = _Line(port)
    for request in (text_request(_WORDS[0], _TOKENS), network):
        status, body = await line.ask(request)
        if status != 200:
            raise RuntimeError(f"the server refuses a request: {body[:300]!r}")
    line.leave()
    storm.rest = [state for state in [state_of(process)] if state]
    watch = asyncio.ensure_future(_watched(process, storm))
    await _Crowd(port, storm, network, characters).all()
    watch.cancel()
    end = time.monotonic() + 30
    while (stuck := await _jobs(port)) and time.monotonic() < end:
        await asyncio.sleep(0.2)
    storm.stuck = stuck
    await asyncio.sleep(0.5)  # connections end
    storm.rest += [state for state in [state_of(process)] if state]


def measure(
    port: int, process: int, clients: int, seconds: float, network: bytes, characters: int = 1500
) -> Storm:
    """Let clients ask a server with a language model and a network called "m" and "net".

    Args:
        port: of the server.
        process: its process.
        clients: how many ask at a time.
        seconds: for how long.
        network: a request for the network.
        characters: of a long prompt.

    Raises:
        RuntimeError: the server refuses the first requests.
    """
    storm = Storm(clients, seconds)
    asyncio.run(_storm(port, process, storm, network, characters))
    return storm
