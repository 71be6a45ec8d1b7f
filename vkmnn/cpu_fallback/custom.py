"""Custom ops on numpy, by their types."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.base.registry import Registry
from vkmnn.cpu_fallback.registry import AnyArray, CpuExecution, Inputs, cpu_execution
from vkmnn.errors import ModelError
from vkmnn.ir import Op
from vkmnn.ir.custom import CUSTOM, CustomAttrs

CUSTOM_EXECUTIONS: Registry[str, CpuExecution] = Registry("numpy execution of Custom op")


def custom_execution(type_: str) -> Callable[[CpuExecution], CpuExecution]:
    """Register a function as the numpy execution of Custom ops of a type; as `cpu_execution`.

    Raises:
        PluginError: there is one.
    """
    return CUSTOM_EXECUTIONS.register(type_)


@cpu_execution(CUSTOM)
def _custom(op: Op[CustomAttrs], inputs: Inputs) -> list[AnyArray]:
    execution = CUSTOM_EXECUTIONS.get(op.attrs.type)
    if execution is None:
        raise ModelError(
            f"there is no Custom op of type '{op.attrs.type}'",
            hint="load the plug-in that registers it",
        )
    return execution(op, inputs)
