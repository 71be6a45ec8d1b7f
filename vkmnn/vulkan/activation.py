"""Fused activations: the specialization constant that selects one."""

from __future__ import annotations

from vkmnn.ir import Activation
from vkmnn.shaders import kernels

# Kinds with f(0) = 0, so that zero tail lanes of NC4HW4 stay zero.
_KEEP_ZERO = frozenset(
    {"NONE", "RELU", "LEAKY_RELU", "SILU", "GELU", "GELU_TANH", "HARD_SWISH", "TANH", "ELU"}
)


def activation_spec(activation: Activation) -> dict[str, int]:
    """Return the specialization constant ACTIVATION for a fused activation."""
    return {"ACTIVATION": kernels.Activation[activation.kind].value}


def keeps_zero(activation: Activation) -> bool:
    """Return whether the activation of zero is zero."""
    if activation.kind == "CLIP":
        return activation.alpha <= 0 <= activation.beta
    return activation.kind in _KEEP_ZERO
