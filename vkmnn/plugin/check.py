"""Do the registrations fit together?"""

from __future__ import annotations

from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from vkmnn.base.registry import Registry, Snapshot
from vkmnn.converter.passes.pipeline import default_passes, late_passes
from vkmnn.converter.passes.registered import BEGIN, END, PASSES
from vkmnn.core.kernels import KERNELS
from vkmnn.cpu_fallback import run_op
from vkmnn.cpu_fallback.custom import CUSTOM_EXECUTIONS
from vkmnn.cpu_fallback.registry import EXECUTIONS as CPU_EXECUTIONS
from vkmnn.errors import PluginError, page
from vkmnn.geometry.registry import COMPUTERS as GEOMETRY_COMPUTERS
from vkmnn.ir import OP_TYPES
from vkmnn.ir.custom import CUSTOM
from vkmnn.plugin.kernels import lowered_away
from vkmnn.shape.axes import AXES
from vkmnn.shape.custom import CUSTOM_SHAPES
from vkmnn.shape.registry import COMPUTERS as SHAPE_COMPUTERS
from vkmnn.shape.symbolic.rules import SHAPE_RULES, VALUE_RULES
from vkmnn.vulkan.execution import EXECUTIONS as VULKAN_EXECUTIONS

# Every op type has an output, and can be computed with numpy: constants are folded so, and it is
# the backup of all devices.
_NEEDED = ((SHAPE_COMPUTERS, "size_computer"), (CPU_EXECUTIONS, "cpu_execution"))

_OTHERS: tuple[Registry[str, Any], ...] = (
    *(SHAPE_COMPUTERS, SHAPE_RULES, VALUE_RULES, AXES),
    *(CPU_EXECUTIONS, GEOMETRY_COMPUTERS, VULKAN_EXECUTIONS),
)


def check_registrations(before: Snapshot) -> None:
    """Check new registrations: op types are complete, and everything else belongs to one.

    Kernels must be for ops that their backend runs, and passes must have a position.

    Raises:
        PluginError: names the first incomplete one, and the missing part.
    """
    for name in before.names_added(OP_TYPES):
        for registry, decorator in _NEEDED:
            if name not in registry:
                raise PluginError(
                    f"there is no {registry.what} {name}",
                    op=name,
                    hint=f'register one with @{decorator}("{name}")',
                )
    for other in _OTHERS:
        for name in before.names_added(other):
            _check_op(f"{other.what} {name}", name)
    for name in before.names_added(AXES):
        _check_numbering(name)
    for key in before.names_added(KERNELS):
        found = KERNELS[key]
        _check_op(f"kernel {key}", found.op)
        if lowered_away(found):
            raise PluginError(
                f"kernel {key}: devices get Raster instead of {found.op}, which is lowered before",
                op=found.op,
                hint="register a kernel for Raster, or an op type of your own and a pass",
            )
    _check_custom(before)
    for name in before.names_added(PASSES):
        _check_place(name)


def _check_custom(before: Snapshot) -> None:
    """Reject a Custom op with shapes but no computation, or the reverse."""
    pair = (CUSTOM_SHAPES, "custom_op"), (CUSTOM_EXECUTIONS, "custom_execution")
    for (one, _), (other, decorator) in (pair, pair[::-1]):
        for name in before.names_added(one):
            if name not in other:
                raise PluginError(
                    f"there is no {other.what} {name}",
                    op=name,
                    hint=f'register one with @{decorator}("{name}")',
                )


def _check_op(what: str, name: str) -> None:
    """Refuse a registration for an op type that does not exist."""
    kind, _, custom = name.partition(":")
    if name in OP_TYPES or (kind == CUSTOM and custom in CUSTOM_SHAPES):
        return
    near = get_close_matches(name, OP_TYPES, 1)
    raise PluginError(
        f"{what}: there is no such op type",
        op=name,
        hint=f"did you mean {near[0]}?" if near else f'add it with @op_type("{name}")',
    )


def _check_numbering(name: str) -> None:
    """Refuse a declaration of axes that names attributes or contents that the op lacks."""
    declared = OP_TYPES[name.partition(":")[0]]
    known: set[str | int] = {*(one.name for one in fields(declared.attrs)), *declared.content}
    for key in AXES[name].numbering or ():
        if key not in known:
            raise PluginError(
                f"axes of {name}: there is no attribute or content {key!r} to renumber",
                op=name,
                hint=f"there are {', '.join(map(repr, sorted(known, key=str))) or 'none'}",
            )


def _check_place(name: str) -> None:
    """Refuse a pass that would run nowhere, or after itself."""
    after, seen = PASSES[name].after, {name}
    while after in PASSES and after not in seen:
        seen.add(after)
        after = PASSES[after].after
    own = [one.name for table in (default_passes(run_op), late_passes(run_op)) for one in table]
    if after in (BEGIN, END, *own):
        return
    near = get_close_matches(after, [BEGIN, END, *own, *PASSES], 1)
    where = "itself" if after in seen else f"{after}, which does not exist"
    raise PluginError(
        f"pass {name} is to run after {where}",
        hint=f"did you mean {near[0]}?" if near else f"{page('extending/pass')} lists the passes",
    )
