"""Activations that a kernel applies before it stores: the numbers of `include/activation.glsl.j2`.

A kernel that includes it has the specialization constant `ACTIVATION` and the parameters
`act_alpha` and `act_beta`; the names of the members are those of `vkmnn.ir.ACTIVATION_KINDS`.
"""

from __future__ import annotations

from vkmnn.shaders.kernels import Activation

__all__ = ["Activation"]
