"""What an op type declares, and what follows where it declares nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.cpu_fallback.registry import EXECUTIONS as NUMPY
from vkmnn.geometry.registry import COMPUTERS as GEOMETRY
from vkmnn.ir import OP_TYPES
from vkmnn.ir.op_type import USUAL_FLOPS, USUAL_WORK
from vkmnn.shape.axes import AXES
from vkmnn.shape.registry import COMPUTERS
from vkmnn.shape.symbolic.rules import SHAPE_RULES
from vkmnn.vulkan.execution import VulkanExecution
from vkmnn.vulkan.executions import execution_of

_RECIPES = "vkmnn_suite.fuzz.recipes"


@dataclass(frozen=True, slots=True)
class Aspect:
    """One thing that an op type may declare.

    Attributes:
        name: what.
        text: where it is declared, or what holds instead.
        left: nothing is declared.
    """

    name: str
    text: str
    left: bool = False


def aspects(op_type: str) -> list[Aspect]:
    """Return what an op type of the vocabulary declares, and what it leaves open."""
    found = ((name, find(op_type), without) for name, find, without in _ASPECTS)
    return [Aspect(name, where or without, where is None) for name, where, without in found]


def fuzzing(operator: str) -> list[Aspect]:
    """Return whether the fuzzer has a recipe of an operator, such as `com.microsoft::Gelu`.

    The fuzzer is part of the repository, but of no wheel: without it the list is empty.
    """
    if find_spec(_RECIPES.partition(".")[0]) is None:
        return []
    recipes = import_module(_RECIPES)
    excuse, recipe = recipes.EXCUSED.get(operator), recipes.RECIPES.get(operator)
    if recipe is None and excuse is None:
        return [Aspect("fuzzing", "no recipe: the fuzzer makes no node of it", left=True)]
    return [Aspect("fuzzing", f"excused: {excuse}" if recipe is None else _place(recipe))]


def _attributes(op_type: str) -> str:
    return _place(OP_TYPES[op_type].attrs)


def _flops(op_type: str) -> str | None:
    count = OP_TYPES[op_type].flops
    return None if count is USUAL_FLOPS else f"declared ({_name(count)})"


def _host_work(op_type: str) -> str | None:
    work = OP_TYPES[op_type].host
    return None if work is USUAL_WORK else "declared"


def _shape(op_type: str) -> str | None:
    return _place(COMPUTERS[op_type]) if op_type in COMPUTERS else None


def _open_shape(op_type: str) -> str | None:
    return _place(SHAPE_RULES[op_type]) if op_type in SHAPE_RULES else None


def _axes(op_type: str) -> str | None:
    if op_type not in AXES:
        return None
    declared = AXES[op_type]
    order = "in their order" if declared.numbering is None else "in any order"
    return f"{_place(declared.make)}, {order}"


def _numpy(op_type: str) -> str | None:
    return _place(NUMPY[op_type]) if op_type in NUMPY else None


def _device(op_type: str) -> str | None:
    if OP_TYPES[op_type].shape_only:
        return "none: known before the network runs"
    execution = execution_of(op_type)
    if execution is not None:
        return _place(execution)
    if op_type in GEOMETRY:
        return f"as copies of regions, by {_place(GEOMETRY[op_type])}"
    return None


def _alike(op_type: str) -> str | None:
    execution = execution_of(op_type)
    if execution is None:
        return "does not apply: no execution"
    if not _says(execution, "repeatable"):
        return None
    return "planned once (repeatable)" if execution.repeatable else "planned op by op"


def _narrow_floats(op_type: str) -> str | None:
    execution = execution_of(op_type)
    if execution is None:
        return "does not apply: no execution"
    if _says(execution, "float_operands"):
        return "by its own operands"
    return f"rule {execution.float_rule.name}" if _says(execution, "float_rule") else None


_ASPECTS: tuple[tuple[str, Callable[[str], str | None], str], ...] = (
    ("attributes", _attributes, ""),
    ("shape", _shape, "none: whoever makes the op states the shapes of its results"),
    ("open sizes", _open_shape, "no rule: the shape computer is probed"),
    ("axes", _axes, "unknown: never split, batched or moved, and no cache grows by it"),
    ("cost", _flops, "not declared: one operation for each element of the first result"),
    ("host cost", _host_work, "not declared: one call of numpy, a result's worth of memory"),
    ("numpy", _numpy, "none"),
    ("device", _device, "none: numpy computes it, with copies"),
    ("alike", _alike, "not repeatable: planned op by op"),
    ("float16", _narrow_floats, "no rule: float32 even where sessions store float16"),
)
"""Name, what finds the declaration, and what holds without one."""


def _says(execution: type[VulkanExecution[Any]], name: str) -> bool:
    """Whether a class, or a base of it, overrides a member of `VulkanExecution`."""
    own = execution.__mro__[: execution.__mro__.index(VulkanExecution)]
    return any(name in vars(one) for one in own)


def _place(declared: Any) -> str:
    """Return the module of a function or class, without the package's name."""
    return str(declared.__module__).removeprefix("vkmnn.")


def _name(function: Callable[..., object]) -> str:
    """Return a counter's name; counters made of a number have none of their own."""
    name = function.__name__
    return "per element" if name == "<lambda>" else name
