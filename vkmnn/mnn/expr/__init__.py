"""MNN.expr: Vars, and the functions that compute with them, on numpy.

Names of MNN's that are Python's own, `abs`, `range`, `float` and so on, are attributes here; the
modules of this package spare them.
"""

from __future__ import annotations

from typing import Any, NoReturn

from vkmnn.mnn.expr import elementwise, files, layers, movement, reductions, selection, values
from vkmnn.mnn.expr.cells import set_lazy
from vkmnn.mnn.expr.types import (
    MEMBERS,
    NC4HW4,
    NCHW,
    NHWC,
    Backend,
    Interp_Method,
    MemoryMode,
    Padding_Mode,
    PadValue_Mode,
    Pooling_Mode,
    PowerMode,
    PrecisionMode,
    data_format,
    dtype,
    dtype_of,
)
from vkmnn.mnn.expr.var import Var
from vkmnn.mnn.guarded import all_guarded
from vkmnn.mnn.refused import refuse

FUNCTIONS: dict[str, Any] = all_guarded(
    "expr",
    {
        **elementwise.FUNCTIONS,
        **files.FUNCTIONS,
        **layers.FUNCTIONS,
        **movement.FUNCTIONS,
        **reductions.FUNCTIONS,
        **selection.FUNCTIONS,
        **values.FUNCTIONS,
    },
)
"""MNN.expr's functions by name."""

globals().update(FUNCTIONS)
globals().update(MEMBERS)

__all__ = [
    "NC4HW4",
    "NCHW",
    "NHWC",
    "Backend",
    "Interp_Method",
    "MemoryMode",
    "PadValue_Mode",
    "Padding_Mode",
    "Pooling_Mode",
    "PowerMode",
    "PrecisionMode",
    "Var",
    "data_format",
    "dtype",
    "dtype_of",
    "gc",
    "lazy_eval",
    "set_global_executor_config",
    "set_lazy_mode",
    "set_thread_number",
]
__all__ += [*FUNCTIONS, *MEMBERS]


def lazy_eval(lazy: bool) -> None:
    """Let operations wait until they are read, and follow later changes of their inputs."""
    set_lazy(lazy)


def set_lazy_mode(mode: int) -> None:
    """Do nothing: all of an operation waits."""


def set_thread_number(numberThread: int) -> None:
    """Do nothing: numpy uses the threads that it is configured for."""


def set_global_executor_config(backend: int, precision: int, threadnum: int) -> None:
    """Do nothing: Vars are computed on numpy, in float32."""


def gc(full: bool) -> None:
    """Do nothing: Python frees what nothing refers to."""


def __getattr__(name: str) -> NoReturn:
    """Raise for a missing name, with the reason."""
    refuse("expr", name)
