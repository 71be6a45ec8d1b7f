"""SessionOptions and RunOptions: every attribute of onnxruntime's, honoured or ignored openly."""

from __future__ import annotations

import inspect
import operator
import os
from typing import Any

import numpy as np

from vkmnn.onnxruntime import errors
from vkmnn.onnxruntime.enums import ExecutionMode, ExecutionOrder, GraphOptimizationLevel

NO_CPU_FALLBACK = "session.disable_cpu_ep_fallback"


class _Options:
    """Attributes with a type and a default, and named entries of text."""

    def __init__(self) -> None:
        object.__setattr__(self, "_entries", {})

    _entries: dict[str, str]

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute that exists to a value of its type.

        Raises:
            AttributeError: the attribute does not exist.
            TypeError: the value is of another type.
        """
        if name.startswith("_") or name not in inspect.get_annotations(type(self)):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        object.__setattr__(self, name, _converted(name, value, getattr(type(self), name)))

    def _add_entry(self, key: object, value: object) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"an entry is a pair of texts, not ({key!r}, {value!r})")
        self._entries[key] = value

    def _get_entry(self, key: str) -> str:
        if key not in self._entries:
            raise RuntimeError(f"{type(self).__name__} does not have configuration with key: {key}")
        return self._entries[key]


def _converted(name: str, value: Any, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            if isinstance(value, bool | np.bool_):
                return bool(value)
        elif isinstance(default, str):
            return os.fspath(value)
        elif type(default) is int:
            return operator.index(value)
        elif isinstance(value, type(default)):
            return value
    except TypeError:
        pass
    raise TypeError(f"{name} is of type {type(default).__name__}, not {type(value).__name__}")


class SessionOptions(_Options):
    """Options of a session.

    Honoured: `graph_optimization_level` (none or all), `enable_profiling`, `profile_file_prefix`,
    `add_free_dimension_override_by_name`, and the entry "session.disable_cpu_ep_fallback". Other
    options are stored for programs that read them back, and a session warns once about those that
    were set.
    """

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: ExecutionMode = ExecutionMode.ORT_SEQUENTIAL
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    graph_optimization_level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True

    _HONOURED = frozenset(
        {"_entries", "_sizes", "enable_profiling", "graph_optimization_level"}
        | {"profile_file_prefix", "log_severity_level", "logid"}
    )

    def __init__(self) -> None:
        super().__init__()
        object.__setattr__(self, "_sizes", {})

    _sizes: dict[str, int]

    @property
    def sizes(self) -> dict[str, int]:
        """Return the sizes given to named dimensions."""
        return dict(self._sizes)

    @property
    def no_cpu_fallback(self) -> bool:
        """Return whether a session must refuse to run an op off the device."""
        return self._entries.get(NO_CPU_FALLBACK) == "1"

    def ignored(self) -> list[str]:
        """Return the names of options that are set but have no effect."""
        names = [
            name
            for name in vars(self)
            if name not in self._HONOURED and getattr(self, name) != getattr(type(self), name)
        ]
        return sorted([*names, *(key for key in self._entries if key != NO_CPU_FALLBACK)])

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Set an entry by its name."""
        self._add_entry(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return an entry.

        Raises:
            RuntimeError: it has not been set.
        """
        return self._get_entry(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the size of a named dimension."""
        self._sizes[name] = operator.index(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Refused: vkmnn reads no denotations.

        Raises:
            NotImplemented: always.
        """
        raise errors.NotImplemented(
            f"dimensions of denotation '{denotation}' cannot be fixed",
            hint="use add_free_dimension_override_by_name",
        )

    def add_initializer(self, name: str, value: object) -> None:
        """Unsupported: initializers come from the model.

        Raises:
            NotImplemented: always.
        """
        raise errors.NotImplemented(
            f"initializer '{name}' cannot be given by the program",
            hint="store it in the model, or feed it as an input",
        )

    def add_external_initializers(self, names: list[str], values: list[object]) -> None:
        """Refused, as `add_initializer`.

        Raises:
            NotImplemented: always.
        """
        self.add_initializer(", ".join(names), values)

    def register_custom_ops_library(self, path: str) -> None:
        """Refused: the library holds kernels for onnxruntime.

        Raises:
            Fail: always.
        """
        raise errors.Fail(
            f"Failed to load library {path} with error: it holds kernels of onnxruntime",
            hint="write the operator as a plug-in of vkmnn: python -m vkmnn.codegen new-op",
        )

    def add_provider(self, name: str, options: dict[str, str]) -> None:
        """Unsupported: pass providers to the session.

        Raises:
            NotImplemented: always.
        """
        raise errors.NotImplemented(
            f"provider '{name}' cannot be added to SessionOptions",
            hint="give it to InferenceSession: providers=[(name, options)]",
        )

    def has_providers(self) -> bool:
        """Return whether providers were added: never."""
        return False


class RunOptions(_Options):
    """Options of one run; only `terminate` has an effect."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Set an entry by its name; none has an effect."""
        self._add_entry(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return an entry.

        Raises:
            RuntimeError: it has not been set.
        """
        return self._get_entry(key)
