"""Do the registrations fit together?"""

from __future__ import annotations

from typing import Any

from vkmnn.cpu_fallback.registry import EXECUTIONS as CPU_EXECUTIONS
from vkmnn.errors import PluginError
from vkmnn.geometry.registry import COMPUTERS as GEOMETRY_COMPUTERS
from vkmnn.ir import OP_TYPES
from vkmnn.registry import Registry, Snapshot
from vkmnn.shape.registry import COMPUTERS as SHAPE_COMPUTERS
from vkmnn.shape.symbolic.rules import SHAPE_RULES, VALUE_RULES
from vkmnn.vulkan.execution import EXECUTIONS as VULKAN_EXECUTIONS

# Every op type has an output, and can be computed with numpy: constants are folded so, and it is
# the backup of all devices.
_NEEDED = ((SHAPE_COMPUTERS, "size_computer"), (CPU_EXECUTIONS, "cpu_execution"))

_OTHERS: tuple[Registry[str, Any], ...] = (
    *(SHAPE_COMPUTERS, SHAPE_RULES, VALUE_RULES),
    *(CPU_EXECUTIONS, GEOMETRY_COMPUTERS, VULKAN_EXECUTIONS),
)


def check_registrations(before: Snapshot) -> None:
    """Check what was registered since: op types are complete, and all else is for an op type.

    Raises:
        PluginError: names the first that is not so, and what is missing.
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
            if name not in OP_TYPES:
                import difflib

                near = difflib.get_close_matches(name, OP_TYPES, 1)
                raise PluginError(
                    f"{other.what} {name}: there is no such op type",
                    op=name,
                    hint=f"did you mean {near[0]}?" if near else f'add it with @op_type("{name}")',
                )
