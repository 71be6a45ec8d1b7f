"""The names of a folder's `kernels` module, created from its lock on first use.

Type checkers read them from `kernels.pyi`, which `python -m vkmnn.codegen` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from functools import cached_property
from typing import Any, Literal

from vkmnn.errors import ShaderError
from vkmnn.runtime.shader import Shader
from vkmnn.shader_files.lock import Lock, camel
from vkmnn.shaders.library import ShaderLibrary
from vkmnn.shaders.params import params_class


def bind(module: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a module in a folder of shaders.

    Args:
        module: the module's globals.
    """
    kernels = _Kernels(module)
    return kernels.get, kernels.names


class _Kernels:
    """Creates the names of one module, and stores them in it."""

    def __init__(self, module: dict[str, Any]) -> None:
        self._module = module
        self._library = ShaderLibrary.beside(module["__file__"])

    @cached_property
    def _lock(self) -> Lock:
        lock = self._library.lock
        if lock is None:
            raise ShaderError(
                f"there is no lock in {self._library.folder}",
                hint="write it: `python -m vkmnn.codegen --shaders FOLDER`",
            )
        return lock

    @cached_property
    def _makers(self) -> dict[str, Callable[[], Any]]:
        """Factories by name."""
        makers: dict[str, Callable[[], Any]] = {}

        def add(name: str, maker: Callable[..., Any], *args: Any) -> None:
            makers[name] = lambda: maker(name, *args)

        for name, members in self._lock.enums.items():
            add(name, self._enum, members)
        for name, template in self._lock.templates.items():
            add(name, self._kernel, tuple(template["axes"]), template["doc"])
            for axis, values in template["axes"].items():
                add(f"{camel(name)}{camel(axis)}", self._values, values)
            if template["params"]:
                add(f"{camel(name)}Params", self._params, name, template["params"])
        return makers

    def names(self) -> list[str]:
        return sorted({*self._module, *self._makers})

    def get(self, name: str) -> Any:
        """Return a name of the module that is used for the first time."""
        if name.startswith("__"):  # attributes that Python and tools request of every module
            raise AttributeError(f"module {self._module['__name__']!r} has no attribute {name!r}")
        maker = self._makers.get(name)
        if maker is None:
            raise AttributeError(f"module {self._module['__name__']!r} has no attribute {name!r}")
        return self._module.setdefault(name, maker())

    def _enum(self, name: str, members: list[str]) -> type[IntEnum]:
        numbers = {member: number for number, member in enumerate(members)}
        made = IntEnum(name, numbers, module=self._module["__name__"])  # type: ignore[misc]
        made.__doc__ = f"The numbers `{name.upper()}_…` of GLSL."
        return made

    def _values(self, name: str, values: list[str | int]) -> Any:
        return Literal[tuple(values)]

    def _params(self, name: str, template: str, declared: list[str]) -> Any:
        made = params_class(name, self._module["__name__"], declared)
        made.__doc__ = f"Push constants of `{template}`: {made._layout.size} bytes."
        return made

    def _kernel(self, name: str, axes: tuple[str, ...], doc: str) -> Callable[..., Shader]:
        find = self._library.find

        def kernel(**values: str | int) -> Shader:
            if tuple(values) != axes:
                values = _ordered(name, axes, values)
            return find(name, values)

        kernel.__name__ = kernel.__qualname__ = name
        kernel.__module__ = self._module["__name__"]
        kernel.__doc__ = f"Return a variant of `{name}`.\n\n{doc}"
        return kernel


def _ordered(
    name: str, axes: tuple[str, ...], values: Mapping[str, str | int]
) -> dict[str, str | int]:
    """Return the values in the order of the axes; raises TypeError when they are others."""
    for axis in axes:
        if axis not in values:
            raise TypeError(f"{name}() missing required keyword-only argument: {axis!r}")
    for axis in values:
        if axis not in axes:
            raise TypeError(f"{name}() got an unexpected keyword argument {axis!r}")
    return {axis: values[axis] for axis in axes}
