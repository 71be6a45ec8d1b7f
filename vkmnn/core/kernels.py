"""Kernels that plug-ins add to a backend: registration and selection.

Of the kernels for an op, the one with the highest priority is asked first. vkmnn's own have
priority 0, those of plug-ins 10 by default. Between equals, one for the op's element type precedes
one for any; then names of providers decide. A kernel that rejects the op leaves it to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.base.registry import Registry
from vkmnn.core.execution import Execution, Rejection
from vkmnn.core.tensor import Tensor
from vkmnn.ir import DType, Op

OWN = "vkmnn"
"""The provider of vkmnn's own kernels."""

OWN_PRIORITY = 0
PLUGIN_PRIORITY = 10

Make = Callable[..., Execution[Any]]
"""Creates an execution from op, inputs, outputs, and further arguments of the backend."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel and its scope; `dtype` None means every element type."""

    backend: str
    op: str
    make: Make
    provider: str = OWN
    dtype: DType | None = None
    priority: int = OWN_PRIORITY

    @property
    def key(self) -> str:
        """Registration key, which is unique."""
        kind = self.dtype.value if self.dtype else "any type"
        return f"{self.op} on {self.backend} for {kind} by {self.provider}"


KERNELS: Registry[str, Kernel] = Registry("kernel")


def kernels_of(backend: str, op: str, dtype: DType | None, own: Kernel | None) -> list[Kernel]:
    """Return the kernels for an op, in the order in which they are asked.

    Args:
        backend: the backend's type.
        op: the op's type, for a Custom op including its own: `Op.kernel`.
        dtype: the element type that decides: see `deciding_dtype`.
        own: the backend's own kernel.
    """
    added = [
        kernel
        for kernel in KERNELS.values()
        if kernel.op == op and kernel.backend == backend and kernel.dtype in (None, dtype)
    ]
    added += [own] if own else []
    return sorted(added, key=lambda one: (-one.priority, one.dtype is None, one.provider))


def deciding_dtype(inputs: Sequence[Tensor | None], outputs: Sequence[Tensor] = ()) -> DType | None:
    """Return the element type that selects kernels: that of the first present input.

    For an op without inputs, it is that of its first output.
    """
    return next((one.dtype for one in (*inputs, *outputs) if one is not None), None)


def create(
    backend: str,
    own: Make | None,
    op: Op,
    inputs: Sequence[Tensor | None],
    outputs: Sequence[Tensor],
    *details: object,
) -> Execution[Any] | Rejection | None:
    """Return an execution by the first kernel that accepts the op.

    Args:
        backend: the backend's type.
        own: its own kernel.
        op: the op to execute.
        inputs: its operands, None where one is absent.
        outputs: its results.
        details: further arguments of this backend's kernels.

    Returns:
        The execution, with its provider and the kernels that rejected the op before it; a Rejection
        with all reasons; None if there is no kernel.
    """
    if not len(KERNELS):
        try:
            return own(op, inputs, outputs, *details) if own else None
        except Rejection as rejection:
            return Rejection(rejection.reason)
    builtin = None if own is None else Kernel(backend, op.kernel, own)
    found = kernels_of(backend, op.kernel, deciding_dtype(inputs, outputs), builtin)
    reasons: list[str] = []
    for kernel in found:
        try:
            execution = kernel.make(op, inputs, outputs, *details)
        except Rejection as rejection:
            prefix = "" if kernel is builtin else f"{kernel.provider}: "
            reasons.append(f"{prefix}{rejection.reason}")
            continue
        execution.provider = kernel.provider
        execution.passed_over = tuple(reasons)
        return execution
    return Rejection("; ".join(reasons)) if reasons else None
