"""The speed of every kernel, compared with the device's limits: a roofline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.table import Table

import vkmnn
from benchmarks.ceilings import Ceilings
from benchmarks.networks import Network
from vkmnn.cli.console import bytes_text, table, time_text
from vkmnn.core.profile import OpTime, Profile


@dataclass(frozen=True, slots=True)
class KernelRate:
    """All ops of a network whose longest step is a kernel; times include their other steps.

    FLOP/s are those of the operators' definitions: Winograd's and zero padding's count in full, so
    that they may exceed the ceiling. Bytes are those of inputs, weights and outputs, each once.
    `min_us` is the minimum that the ceilings allow; `part` is the fraction of it that the ops
    achieve.
    """

    kernel: str
    type: str
    ops: int
    microseconds: float
    share: float
    flops: int
    nbytes: int
    min_us: float
    bound: str

    @property
    def part(self) -> float:
        """The minimum possible time divided by the actual time."""
        return self.min_us / self.microseconds if self.microseconds else 0.0

    @property
    def intensity(self) -> float:
        """Floating-point operations a byte."""
        return self.flops / self.nbytes if self.nbytes else 0.0


def measure(network: Network, device: str, runs: int, ceilings: Ceilings) -> list[KernelRate]:
    """Profile a network and return its kernels, those with the most time first."""
    with vkmnn.InferenceSession(network.path, device) as session:
        return rates(session.profile(dict(network.feeds), runs), ceilings)


def rates(profile: Profile, ceilings: Ceilings) -> list[KernelRate]:
    """Return the kernels of a profile, those with the most time first."""
    groups: dict[tuple[str, str], list[OpTime]] = {}
    for op in profile.ops():
        groups.setdefault((op.kernel, op.type), []).append(op)
    total = profile.total_us or 1.0
    result = []
    for (kernel, kind), ops in groups.items():
        spent = sum(op.microseconds for op in ops)
        flops, nbytes = sum(op.flops for op in ops), sum(op.nbytes for op in ops)
        minimum = sum(ceilings.min_seconds(op.flops, op.nbytes) for op in ops) * 1e6
        compute = sum(ceilings.min_seconds(op.flops, 0) for op in ops) * 1e6
        bound = "arithmetic" if compute > minimum / 2 else "memory"
        result.append(
            KernelRate(kernel, kind, len(ops), spent, spent / total, flops, nbytes, minimum, bound)
        )
    return sorted(result, key=lambda rate: -rate.microseconds)


def rates_table(rows: Iterable[KernelRate]) -> Table:
    """Return the kernels as a table."""
    numbers = ("ops", "µs", "share", "GFLOP/s", "GB/s", "FLOP/byte", "of the ceiling")
    made = table("kernel", "op", *numbers, "limit", right=numbers)
    for row in rows:
        made.add_row(
            row.kernel,
            row.type,
            str(row.ops),
            f"{row.microseconds:.1f}",
            f"{100 * row.share:.1f} %",
            f"{row.flops / row.microseconds / 1e3:.1f}",
            f"{row.nbytes / row.microseconds / 1e3:.2f}",
            f"{row.intensity:.1f}",
            f"{100 * row.part:.0f} %",
            row.bound,
        )
    return made


def ceilings_table(ceilings: Ceilings) -> Table:
    """Return the ceilings as a table."""
    made = table("ceiling", "rate", right=("rate",))
    for dtype, flops in ceilings.flops.items():
        made.add_row(f"multiply-adds, {dtype}", f"{flops / 1e9:,.1f} GFLOP/s")
    for size, rate in ceilings.bandwidth.items():
        spent = time_text(size / rate)
        made.add_row(f"copy that moves {bytes_text(size)} ({spent})", f"{rate / 1e9:,.2f} GB/s")
    return made
