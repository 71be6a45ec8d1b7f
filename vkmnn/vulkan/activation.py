"""Fused activations: the specialization constant that selects one."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from vkmnn.base.records import dataclass
from vkmnn.core.tensor import Tensor
from vkmnn.ir import Activation
from vkmnn.shaders import kernels

# Kinds with f(0) = 0, so that zero tail lanes of NC4HW4 stay zero.
_KEEP_ZERO = frozenset(
    {
        "NONE",
        "RELU",
        "LEAKY_RELU",
        "SILU",
        "GELU",
        "GELU_TANH",
        "HARD_SWISH",
        "TANH",
        "ELU",
        "QUICK_GELU",
    }
)


_NUMBERS = {kind.name: kind.value for kind in kernels.Activation}


def activation_spec(activation: Activation) -> dict[str, int]:
    """Return the specialization constant ACTIVATION for a fused activation."""
    return {"ACTIVATION": _NUMBERS[activation.kind]}


# Activations that are a clamp, in addition to CLIP, and their bounds.
_CLAMPS = {"NONE": (-inf, inf), "RELU": (0.0, inf)}


@dataclass(slots=True)  # not frozen, which takes twice as long: plans make hundreds
class ActivationCall:
    """An activation as kernels apply it: two parameters, a specialization constant."""

    alpha: float
    beta: float
    spec: Mapping[str, int]


def call_of(activation: Activation) -> ActivationCall:
    """Return the parameters of an activation in convolutions and products.

    None, ReLU and Clip are one clamp with different bounds: layers with any of them share one
    pipeline.
    """
    bounds = _CLAMPS.get(activation.kind)
    if bounds is not None:
        return ActivationCall(*bounds, {"ACTIVATION": _NUMBERS["CLIP"]})
    return ActivationCall(activation.alpha, activation.beta, activation_spec(activation))


def residual_spec(residual: Tensor | None, kind: str) -> dict[str, int | bool]:
    """Return the specialization constants for a residual of one of RESIDUAL_KINDS."""
    spec: dict[str, int | bool] = {"HAS_RESIDUAL": residual is not None}
    if residual is not None and kind != "ADD_BEFORE":
        spec["RESIDUAL"] = kernels.Residual[kind].value
    return spec


def keeps_zero(activation: Activation) -> bool:
    """Return whether the activation of zero is zero."""
    if activation.kind == "CLIP":
        return activation.alpha <= 0 <= activation.beta
    return activation.kind in _KEEP_ZERO
