"""Executions on numpy, and kernels that plug-ins add."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from vkmnn.core.execution import Execution
from vkmnn.core.tensor import Tensor
from vkmnn.cpu_fallback.registry import CpuExecution, run_op
from vkmnn.cpu_fallback.results import checked_results
from vkmnn.cpu_fallback.scratch import Arena, Memory, Scratch, Storage
from vkmnn.errors import PluginError
from vkmnn.ir import Array, Op, TensorInfo


class NumpyExecution(Execution):
    """An op on the numpy backend."""

    def on_execute(
        self, inputs: Sequence[Array | None], outputs: Sequence[TensorInfo]
    ) -> list[Array]:
        """Return the op's outputs."""
        return run_op(self.op, inputs, outputs)


class CpuKernel(NumpyExecution):
    """An op computed by a plug-in's code.

    A subclass overrides `compute`, and may override the preceding steps: `load`, which is called
    once for an op of a network, and `prepare`, which is called once for each plan, that is, for
    each set of input shapes. Attributes that `prepare` sets are available in all runs.

    Attributes:
        loaded: the result of `load`.

    Raises:
        Rejection: raised by `load` or `prepare`, the kernel cannot run this op.
    """

    def __init__(self, op: Op, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor]) -> None:
        super().__init__(op, inputs, outputs)
        self._scratch = Scratch()
        self._preparing = True
        self._shared = _shared(self)
        self.loaded: Any = self._shared.value
        self.prepare()
        self._preparing = False

    def load(self) -> Any:
        """Return data that depends only on attributes and constants, such as packed weights.

        All plans and sessions of a network share the result (MNN onClone) while one of them is
        open; it must not be changed afterwards. Shapes of other inputs may differ in other plans.
        """
        return None

    def prepare(self) -> None:
        """Plan for shapes and attributes, or raise Rejection (MNN onResize)."""

    def acquire(
        self,
        shape: Sequence[int],
        dtype: npt.DTypeLike,
        storage: Storage = Storage.DYNAMIC,
    ) -> Memory:
        """Return memory for `compute`; to be called in `prepare`.

        Args:
            shape: its sizes.
            dtype: the type of its elements.
            storage: how long it is the kernel's own.

        Raises:
            PluginError: called later than in `prepare`.
        """
        self._refuse_later()
        return self._scratch.acquire(tuple(shape), dtype, storage)

    def release(self, memory: Memory) -> None:
        """Let later acquisitions of `prepare` reuse the memory.

        All DYNAMIC memory is free for other kernels once this one has computed, released or not.

        Raises:
            PluginError: called later than in `prepare`, or it cannot be released.
        """
        self._refuse_later()
        self._scratch.release(memory)

    def _refuse_later(self) -> None:
        if not self._preparing:
            raise PluginError(
                "memory is acquired and released in `prepare` only",
                op=self.op.type,
                node=self.op.name,
            )

    def use_arena(self, arena: Arena) -> None:
        """Acquire DYNAMIC memory from an arena shared with other kernels."""
        self._scratch.arena = arena

    def compute(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Return all outputs; it must not change the inputs, None where one is absent.

        Results must not be in acquired memory: the next run writes there.
        """
        raise NotImplementedError

    def on_execute(
        self, inputs: Sequence[Array | None], outputs: Sequence[TensorInfo]
    ) -> list[Array]:
        """Return the op's outputs; exceptions of `compute` become typed errors."""
        return run_op(self.op, inputs, outputs, self._computed)

    def _computed(
        self, op: Op, inputs: Sequence[Array | None], outputs: Sequence[TensorInfo] | None
    ) -> list[Array]:
        return checked_results(op, self.compute(inputs), inputs, outputs)


class FunctionKernel(CpuKernel):
    """An op computed by a function of op and inputs."""

    function: CpuExecution

    def compute(self, inputs: Sequence[Array | None]) -> list[Array]:
        """Call the function."""
        return type(self).function(self.op, inputs)


class _Shared:
    """The result of `load`; `sources` keeps the objects alive that its key identifies."""

    __slots__ = ("__weakref__", "sources", "value")

    def __init__(self, value: Any, sources: Sequence[object]) -> None:
        self.value = value
        self.sources = sources


_SHARED: weakref.WeakValueDictionary[tuple[object, ...], _Shared] = weakref.WeakValueDictionary()
_SHARED_LOCK = threading.Lock()


def _shared(kernel: CpuKernel) -> _Shared:
    """Return loaded data, shared with equal ops that have the same constants."""
    load: Callable[[], Any] = kernel.load
    if type(kernel).load is CpuKernel.load:
        return _Shared(None, ())
    constants = [None if one is None else one.value for one in kernel.inputs]
    sources = (kernel.op.attrs, *constants)
    key = (type(kernel), kernel.op.type, *map(id, sources))
    with _SHARED_LOCK:
        found = _SHARED.get(key)
        if found is None:
            found = _SHARED[key] = _Shared(load(), sources)
        return found
