"""onnxruntime's enumerations."""

from __future__ import annotations

from enum import IntEnum


class _Enum(IntEnum):
    """Equals its number and reads as "ExecutionMode.ORT_SEQUENTIAL", as onnxruntime's do."""

    def __str__(self) -> str:
        """Return class and name."""
        return f"{type(self).__name__}.{self.name}"


class GraphOptimizationLevel(_Enum):
    """Optimisation level: `ORT_DISABLE_ALL` runs no pass, all others run all of them."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(_Enum):
    """Ignored: one queue of the device runs everything."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(_Enum):
    """Ignored: the order follows from the reads and writes of kernels."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class OrtAllocatorType(_Enum):
    """Kinds of allocators, for programs that name them."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(_Enum):
    """Kinds of memory, for programs that name them."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    CPU = -1
    DEFAULT = 0
