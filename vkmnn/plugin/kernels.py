"""Kernels of plug-ins, also for op types that vkmnn has: registered, checked, and listed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from vkmnn.base.registry import Registry
from vkmnn.core.execution import Execution
from vkmnn.core.kernels import KERNELS, OWN, PLUGIN_PRIORITY, Kernel
from vkmnn.cpu_fallback.kernel import CpuKernel, FunctionKernel
from vkmnn.cpu_fallback.registry import EXECUTIONS as CPU_EXECUTIONS
from vkmnn.errors import PluginError
from vkmnn.geometry.registry import COMPUTERS as GEOMETRY_COMPUTERS
from vkmnn.ir import DType
from vkmnn.vulkan.execution import EXECUTIONS as VULKAN_EXECUTIONS
from vkmnn.vulkan.execution import VulkanExecution

K = TypeVar("K", bound=Callable[..., Any])

_BASES: dict[str, tuple[type[Execution[Any]], str]] = {
    "VULKAN": (VulkanExecution, "on_encode"),
    "CPU": (CpuKernel, "compute"),
}
"""The base class of the kernels of vkmnn's backends, and the method that has to be there."""

_OWN: dict[str, Registry[str, Any]] = {"VULKAN": VULKAN_EXECUTIONS, "CPU": CPU_EXECUTIONS}


def kernel(
    *ops: str,
    backend: str = "VULKAN",
    provider: str = "",
    dtype: DType | None = None,
    priority: int = PLUGIN_PRIORITY,
) -> Callable[[K], K]:
    """Register a kernel for ops of these types; the op type may be one that has kernels already.

    The kernel with the highest priority is asked first; vkmnn's own have 0. Between equals, one for
    the op's element type precedes one for any, then names of providers decide. A kernel that raises
    Rejection in `prepare` leaves the op to the next one. `session.placement()` names the provider
    of each op's kernel.

    Args:
        ops: op types; of Custom ops, "Custom:" and their own type.
        backend: "VULKAN" for a class derived from VulkanExecution, "CPU" for one derived from
            CpuKernel, or a function of op and inputs; or a plug-in's backend, for the objects that
            it accepts.
        provider: the author of the kernel; by default the name of the top-level module.
        dtype: the element type of the first present input; None for any.
        priority: see above; below 0, it only runs ops that vkmnn's own kernel rejects.

    Raises:
        PluginError: the provider already has such a kernel, or it is not of the backend's kind.
    """
    wrong: tuple[object, object] = priority, dtype
    if not isinstance(wrong[0], int) or not isinstance(wrong[1], (DType, type(None))):
        raise PluginError(
            f"dtype {dtype!r} with priority {priority!r}",
            hint="dtype=DType.FLOAT32 or None, priority=10",
        )
    if not ops:
        raise PluginError("the kernel names no op type", hint='name an op type: @kernel("MatMul")')

    def add(made: K) -> K:
        who = provider or made.__module__.partition(".")[0]
        make = _maker(made, backend, ops[0])
        for op in ops:
            new = Kernel(backend, op, make, who, dtype, priority)
            KERNELS.register(new.key)(new)
        return made

    return add


def _maker(made: Callable[..., Any], backend: str, op: str) -> Callable[..., Execution[Any]]:
    """Return the factory of executions; a function for the CPU becomes a class.

    Raises:
        PluginError: it is not of the backend's kind.
    """
    if backend == "CPU" and not isinstance(made, type):
        names = {"function": staticmethod(made), "__module__": made.__module__}
        return type(made.__name__, (FunctionKernel,), names)
    base, method = _BASES.get(backend, (Execution, "__init__"))
    mro = getattr(made, "__mro__", ())
    known = backend in _BASES
    if base in mro and not (known and getattr(made, method) is getattr(base, method)):
        return made
    more = f" and write its {method}" if known else ""
    raise PluginError(
        f"{made!r} cannot execute on {backend}",
        op=op,
        hint=f"derive a class from {base.__name__}{more}",
    )


def shadowed(new: Kernel) -> list[str]:
    """Return the kernels that are asked after this one, for the same ops."""
    found = [
        other
        for other in KERNELS.values()
        if other is not new
        and (other.op, other.backend) == (new.op, new.backend)
        and (other.dtype is None or new.dtype in (None, other.dtype))
        and (-other.priority, other.dtype is None, other.provider)
        > (-new.priority, new.dtype is None, new.provider)
    ]
    names = [f"{other.provider}'s" for other in found]
    own = _OWN.get(new.backend)
    if own is not None and new.op in own and new.priority >= 0:
        names.append(f"{OWN}'s own")
    return names


def priorities(registered: Sequence[str]) -> list[str]:
    """Return a line for each registered kernel: its priority, and the kernels it precedes.

    Args:
        registered: registrations as text, as `Plugin.registered` has them.
    """
    lines = []
    for text in registered:
        found = KERNELS.get(text.removeprefix(f"{KERNELS.what} "))
        if found is not None:
            over = ", ".join(shadowed(found))
            lines.append(f"{text}: priority {found.priority}" + f", before {over}" * bool(over))
    return lines


def lowered_away(found: Kernel) -> bool:
    """True if the backend never sees ops of this type: a geometry computer replaces them."""
    return (
        found.backend == "VULKAN"
        and found.op in GEOMETRY_COMPUTERS
        and found.op not in VULKAN_EXECUTIONS
    )
