"""Cases of the shader squared_relu, for `pytest --vkmnn-shaders`."""

from __future__ import annotations

from collections.abc import Iterator
from struct import pack

from vkmnn.plugin import CustomAttrs
from vkmnn.shaders import ShaderLibrary
from vkmnn.testing import Case, Variant, op_case, shader_cases
from vkmnn.testing.shapes import SHAPES, floats

from vkmnn_squared_relu import kernels
from vkmnn_squared_relu.squared_relu import TYPE

LIBRARY = ShaderLibrary.beside(kernels.__file__)


@shader_cases("squared_relu", LIBRARY)
def cases(variant: Variant) -> Iterator[Case]:
    """Yield inputs of every shape; what is expected is what numpy computes."""
    for shape in SHAPES:
        for scale in (1.0, 1.5):
            attrs = CustomAttrs(TYPE, (("scale", pack("<f", scale)),))
            yield op_case("Custom", attrs, [floats(*shape, seed=0)])
