"""Limits for loading and planning a model, and the meter that enforces them.

A model of a hundred bytes can ask for any amount of memory and time: chains of ops that double
their input, fills of any shape, nested functions. Sizes are therefore computed and charged before
anything of that size is created.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from pathlib import Path

from vkmnn.errors import BudgetError, InvalidInputError

DEFAULT_BYTES = 256 << 20
"""Copies of computed constants: packed for kernels, and in device memory."""

DEFAULT_FILLED_BYTES = 640 << 20
"""Limit for fills, which take no memory as constants: one value, repeated. Test models declare
their weights this way to stay small: VGG-19's are 548 MiB.
"""

DEFAULT_NODES = 100_000

BASE_SECONDS = 4.0
SECONDS_PER_NODE = 0.01
SECONDS_PER_MIB = 0.1
"""Seconds: networks take 1 to 3 ms per node and less per MiB of weights on a slow core."""

GROWTH = 8
"""Default limit of derived constants, relative to the model's own weights."""

FREE_SHARE = 0.75
"""Default share of the free memory for a plan's values."""

INDEX_BYTES = 64
"""Bytes per element of a table with the source of every element of an axis."""

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits for one model; an argument of `InferenceSession` and `Interpreter`.

    Args:
        bytes: memory for values computed from constants while the model is loaded or planned, and
            for ops on the numpy backend at any one time. None: 256 MiB, or eight times the model's
            weights if that is more; and three quarters of the free memory for the numpy ops.
            Including constants that repeat one value: 640 MiB. The weights of the file itself do
            not count.
        nodes: maximum nodes of the model, with its functions expanded. Plans may split their data
            movement into as many pieces.
        seconds: processor time for loading, and again for each plan; the recording of commands and
            the compilation of shaders do not count. None: 4 s, 10 ms more per node of the file and
            0.1 s more per MiB of weights.
    """

    bytes: int | None = None
    nodes: int = DEFAULT_NODES
    seconds: float | None = None

    def __post_init__(self) -> None:
        """Refuse negative limits, and values that are not numbers."""
        for name in ("bytes", "nodes", "seconds"):
            limit = getattr(self, name)
            optional = limit is None and name != "nodes"
            if not optional and not (isinstance(limit, int | float) and limit >= 0):
                raise InvalidInputError(
                    f"{limit!r} {name} is not a valid budget", hint="give a number of 0 or more"
                )


class Meter:
    """Counts memory, nodes and time of a load or plan, and refuses to exceed the budget.

    Args:
        budget: the limits.
        weights: bytes of the constants that the model brought.
        nodes: nodes of the file.
        clock: returns seconds; by default the processor time of the calling thread, so that work of
            other processes does not cause a refusal.
    """

    def __init__(
        self,
        budget: Budget,
        weights: int = 0,
        nodes: int = 0,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.budget = budget
        self._clock = clock
        self._start = clock()
        self._wall = time.perf_counter() if clock is time.thread_time else -inf
        self._bytes = 0
        self._filled = 0
        self._pieces = 0
        self._host = 0
        self._default = 0
        self._weights = 0
        self._nodes = 0
        self.allowed_bytes = 0
        self.allowed_with_fills = 0
        self.allowed_seconds = 0.0
        self.weigh(weights, nodes)

    def weigh(self, weights: int, nodes: int = 0) -> None:
        """Record the size of the model's own constants, and the number of its nodes."""
        self._weights, self._nodes = max(weights, self._weights), max(nodes, self._nodes)
        given = self.budget.bytes
        self.allowed_bytes = max(DEFAULT_BYTES, GROWTH * self._weights) if given is None else given
        filled = max(DEFAULT_FILLED_BYTES, self.allowed_bytes)
        self.allowed_with_fills = filled if given is None else given
        more = SECONDS_PER_NODE * self._nodes + SECONDS_PER_MIB * self._weights / (1 << 20)
        seconds = self.budget.seconds
        self.allowed_seconds = BASE_SECONDS + more if seconds is None else seconds

    def renewed(self) -> Meter:
        """Return a meter for the next step: full time, current memory."""
        meter = Meter(self.budget, self._weights, self._nodes, self._clock)
        meter._bytes, meter._filled = self._bytes, self._filled
        return meter

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the time spent in the block, in another program that the caller trusts."""
        start, wall = self._clock(), time.perf_counter()
        try:
            yield
        finally:
            self._start += self._clock() - start
            self._wall += time.perf_counter() - wall

    def has_time(self, seconds: float) -> bool:
        """Return whether work of this duration is likely to fit the budget."""
        # Processor time never exceeds elapsed time, which needs no system call.
        if time.perf_counter() + seconds <= self._wall + self.allowed_seconds:
            return True
        return self._clock() + seconds <= self._start + self.allowed_seconds

    def check_time(
        self, op: str | None = None, node: str | None = None, seconds: float = 0.0
    ) -> None:
        """Raise BudgetError if the time is up, or would be after `seconds` more of work."""
        # Inlines the first half of `has_time`: planning checks four times per op.
        in_time = time.perf_counter() + seconds <= self._wall + self.allowed_seconds
        if not in_time and not self.has_time(seconds):
            raise BudgetError(
                f"computing it from constants would take about {seconds:.1g} s, of "
                f"{self.allowed_seconds:.3g} s for loading or planning"
                if seconds
                else f"loading or planning took more than {self.allowed_seconds:.3g} s",
                op=op,
                node=node,
                hint="set VKMNN_MAX_SECONDS higher if the model is trusted",
            )

    def check_nodes(self, count: int, op: str | None = None, node: str | None = None) -> None:
        """Raise BudgetError if the model has more nodes than allowed."""
        if count > self.budget.nodes:
            raise BudgetError(
                f"the model expands to more than {self.budget.nodes} nodes",
                op=op,
                node=node,
                hint="nested functions multiply; set VKMNN_MAX_NODES higher if the model is "
                "trusted",
            )

    def fits(self, nbytes: int) -> bool:
        """Return whether this much additional memory fits the budget."""
        return (
            self._bytes + nbytes <= self.allowed_bytes
            and self._bytes + self._filled + nbytes <= self.allowed_with_fills
        )

    def charge_fill(self, nbytes: int, op: str, node: str) -> None:
        """Charge a constant that repeats one value; raises BudgetError as `charge`."""
        used = self._bytes + self._filled
        if used + nbytes > self.allowed_with_fills:
            raise BudgetError(
                f"{size_text(nbytes)} would be filled with one value; {size_text(used)} of "
                f"{size_text(self.allowed_with_fills)} are used already",
                op=op,
                node=node,
                hint=_RAISE_BYTES,
            )
        self._filled += nbytes

    def charge(self, nbytes: int, op: str, node: str, working: int = 0) -> None:
        """Charge a result that is about to be computed.

        Args:
            nbytes: size of the result.
            op: type of the operator, for the message.
            node: its name.
            working: the most that is held while it is computed, the result included.

        Raises:
            BudgetError: it exceeds the budget.
        """
        if not self.fits(max(nbytes, working)):
            more = f", {size_text(working)} on the way," if working > nbytes else ""
            raise BudgetError(
                f"{size_text(nbytes)}{more} would be computed from constants; "
                f"{size_text(self._bytes)} of {size_text(self.allowed_bytes)} are used already",
                op=op,
                node=node,
                hint=_RAISE_BYTES,
            )
        self._bytes += nbytes

    def refund(self, nbytes: int) -> None:
        """Undo a charge: the result turned out to share its input's memory, or was dropped."""
        self._bytes -= nbytes

    def check_axis(self, size: int, op: str, node: str) -> None:
        """Raise BudgetError if an axis is so long that a list of its indices would be too large."""
        if size * INDEX_BYTES > self.allowed_bytes:
            raise BudgetError(
                f"an axis of {size} elements is too long to be planned: the lists of its indices "
                f"take {size_text(size * INDEX_BYTES)} of {size_text(self.allowed_bytes)} that are "
                "allowed",
                op=op,
                node=node,
                hint=_RAISE_BYTES,
            )

    def check_pieces(self, count: int, op: str, node: str) -> None:
        """Raise BudgetError if this many more regions exceed the budget, or the time is up.

        Called before they are created.
        """
        if self._pieces + count > self.budget.nodes:
            raise BudgetError(
                f"data movement needs more than {self.budget.nodes} pieces",
                op=op,
                node=node,
                hint="set VKMNN_MAX_NODES higher if the model is trusted",
            )
        self.check_time(op, node)

    def charge_pieces(self, count: int, op: str, node: str) -> None:
        """Count the regions of an op; raises as `check_pieces`."""
        self.check_pieces(count, op, node)
        self._pieces += count

    def check_host(self, nbytes: int, working: int, op: str, node: str) -> None:
        """Refuse an op on the numpy backend that needs too much memory.

        Args:
            nbytes: the bytes held after it has run, including its results.
            working: the maximum bytes held while it runs.
            op: its type, for the message.
            node: its name.

        Raises:
            BudgetError: the results exceed the budget, or the working memory exceeds that of the
                process, or exceeds the budget and is many times the size of the results.
        """
        self._host = self._host or host_memory()
        given, there = self.budget.bytes, self._host
        needed = working if given is None or working > GROWTH * nbytes else nbytes
        allowed = given
        if allowed is None:
            self._default = self._default or free_share()
            allowed = min(self._default, there)
        if working > there:
            needed, allowed = working, min(there, allowed)
        if needed > allowed:
            raise BudgetError(
                f"{size_text(needed)} would be held on the numpy backend while this op runs, "
                f"{size_text(allowed)} are allowed",
                op=op,
                node=node,
                hint=f"give smaller inputs; {_RAISE_BYTES}",
            )


_RAISE_BYTES = "set VKMNN_MAX_BYTES higher if the model is trusted and the machine has the memory"


def unlimited() -> Meter:
    """Return a meter for graphs of the program itself."""
    return Meter(Budget(1 << 62, 1 << 62, float("inf")))


def size_text(nbytes: int) -> str:
    """Return a size for a message."""
    if nbytes >= _GIB << 30:  # may be too large for a float
        return f"{Decimal(nbytes):.1e} bytes"
    for unit, text in ((_GIB, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f} {text}"
    return f"{nbytes} bytes"


def host_memory() -> int:
    """Return the bytes that the process can have: the machine's memory, or less by a limit.

    Limits are those of the control group, and of the address space minus its current use.
    """
    sizes = [1 << 36]  # if nothing can be determined
    if hasattr(os, "sysconf") and {"SC_PHYS_PAGES", "SC_PAGE_SIZE"} <= os.sysconf_names.keys():
        sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            sizes.append(int(Path(path).read_text("ascii")))
        except (OSError, ValueError):  # the file does not exist, or says "max"
            continue
    sizes += _address_space()
    return min(sizes)


def free_share() -> int:
    """Return the default share of the memory that is free now."""
    there = host_memory()
    return min(there, int(min(_free_memory() or [there]) * FREE_SHARE))


def check_shared_room(nbytes: int, allowed: int | None) -> None:
    """Refuse a plan on a device whose memory is the host's.

    Args:
        nbytes: the bytes needed for activations, inputs and outputs.
        allowed: an explicit limit, if it is larger than the share of the free memory.

    Raises:
        BudgetError: it needs too much.
    """
    if nbytes <= DEFAULT_BYTES:
        return  # without querying the system
    most = max(free_share(), allowed or 0)
    if nbytes > most:
        raise BudgetError(
            f"{size_text(nbytes)} would be held for activations, inputs and outputs on a device "
            f"that has the host's memory; {size_text(most)} are allowed",
            hint=f"give smaller inputs; {_RAISE_BYTES}",
        )


def _free_memory() -> list[int]:
    """Return the free memory of the machine and the control group, if known."""
    found: list[int] = []
    try:
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        found += [int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError, IndexError):  # another operating system
        pass
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        (group / "memory.max", group / "memory.current"),
        (group / "memory/memory.limit_in_bytes", group / "memory/memory.usage_in_bytes"),
    ):
        try:
            left = int(limit.read_text("ascii")) - int(used.read_text("ascii"))
        except (OSError, ValueError):  # the file does not exist, or says "max"
            continue
        found.append(max(left, 0))
    return found


def _address_space() -> list[int]:
    """Return the unused part of a limited address space."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return []
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
        return [max(limit - pages * resource.getpagesize(), 0)]
    except (ImportError, OSError, ValueError):
        return []
