"""Run one op on channel-blocked tensors on the device."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from tests.op.vulkan.harness import BY_RULE, check_case
from vkmnn.ir import Array, OpAttrs
from vkmnn.testing.case import blocked_case


def check_blocked(
    op_type: str,
    attrs: OpAttrs,
    inputs: Sequence[Array | None],
    *,
    constants: bool = True,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    takes: Mapping[str, Hashable] = BY_RULE,
) -> None:
    """Run the op between poolings of one pixel, which do not change values and need NC4HW4.

    The first input is fed; the others are constants of the graph or, without `constants`, also fed.
    """
    constant = range(1, len(inputs)) if constants else ()
    case = blocked_case(op_type, attrs, inputs, constant=constant, rtol=rtol, atol=atol)
    check_case(replace(case, takes=takes))
