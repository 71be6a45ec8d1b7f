"""Requests to a server, from a process of their own: `python -m benchmarks.load REQUEST …`.

A closed loop has a number of clients that ask again as soon as they are answered; an open one sends
requests at a rate, however long the answers take.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)\r\n", re.IGNORECASE)
_MOST_OPEN = 512
"""Requests in progress at a time in an open loop: more count as failed."""


@dataclass(frozen=True, slots=True)
class Load:
    """The outcome of a loop.

    Attributes:
        kind: "closed" or "open".
        level: clients of a closed loop; requests a second of an open one.
        rate: answered requests a second.
        p50_ms: median time of an answer.
        p99_ms: time within which 99 of 100 answers came.
        failed: requests with another status than 200, or none.
    """

    kind: str
    level: float
    rate: float
    p50_ms: float
    p99_ms: float
    failed: int


class Client:
    """A connection that sends one request again and again."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port = port
        self._request = request
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> bool:
        """Send the request and read the response; return whether its status is 200."""
        try:
            if self._streams is None:
                self._streams = await asyncio.open_connection("127.0.0.1", self._port)
            reader, writer = self._streams
            writer.write(self._request)
            head = await reader.readuntil(b"\r\n\r\n")
            length = LENGTH.search(head)
            await reader.readexactly(int(length[1]) if length else 0)
        except (OSError, asyncio.IncompleteReadError):
            self._streams = None
            return False
        return head.startswith(b"HTTP/1.1 200")


async def closed(port: int, request: bytes, clients: int, seconds: float) -> Load:
    """Run a closed loop."""
    times: list[float] = []
    failed = 0
    begin = time.perf_counter()

    async def one() -> None:
        nonlocal failed
        client = Client(port, request)
        while (start := time.perf_counter()) < begin + seconds:
            if await client.ask():
                times.append(time.perf_counter() - start)
            else:
                failed += 1

    await asyncio.gather(*(one() for _ in range(clients)))
    return _load("closed", clients, times, time.perf_counter() - begin, failed)


async def opened(port: int, request: bytes, rate: float, seconds: float) -> Load:
    """Run an open loop; times count from when a request was due."""
    times: list[float] = []
    failed = 0
    idle: list[Client] = []
    tasks: set[asyncio.Task[None]] = set()
    begin = time.perf_counter()

    async def one(due: float) -> None:
        nonlocal failed
        client = idle.pop() if idle else Client(port, request)
        if await client.ask():
            times.append(time.perf_counter() - due)
        else:
            failed += 1
        idle.append(client)

    for number in range(int(rate * seconds)):
        due = begin + number / rate
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        if len(tasks) >= _MOST_OPEN:
            failed += 1
            continue
        task = asyncio.ensure_future(one(due))
        tasks.add(task)
        task.add_done_callback(tasks.discard)
    await asyncio.gather(*tasks)
    return _load("open", rate, times, time.perf_counter() - begin, failed)


def _load(kind: str, level: float, times: list[float], seconds: float, failed: int) -> Load:
    times.sort()
    p50, p99 = (times[int(len(times) * part)] * 1e3 if times else 0.0 for part in (0.5, 0.99))
    return Load(kind, level, len(times) / seconds, p50, p99, failed)


def main() -> None:
    """Run the loop that the arguments describe; print its outcome as JSON."""
    path, port, kind, level, seconds = sys.argv[1:]
    loop = {"closed": closed, "open": opened}[kind]
    request = Path(path).read_bytes()
    amount = int(level) if kind == "closed" else float(level)
    made = asyncio.run(loop(int(port), request, amount, float(seconds)))  # type: ignore[arg-type]
    sys.stdout.write(json.dumps(asdict(made)))


if __name__ == "__main__":
    main()
