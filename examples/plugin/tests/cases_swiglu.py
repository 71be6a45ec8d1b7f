"""Cases of the shader swiglu, for `pytest --vkmnn-shaders`."""

from __future__ import annotations

from collections.abc import Iterator

from vkmnn.shaders import ShaderLibrary
from vkmnn.testing import Case, Variant, op_case, shader_cases
from vkmnn.testing.shapes import SHAPES, floats

from vkmnn_swiglu import kernels
from vkmnn_swiglu.swiglu import SwiGLUAttrs

LIBRARY = ShaderLibrary.beside(kernels.__file__)


@shader_cases("swiglu", LIBRARY)
def cases(variant: Variant) -> Iterator[Case]:
    """Yield inputs of every shape; what is expected is what numpy computes."""
    for shape in SHAPES:
        inputs = [floats(*shape, seed=seed) for seed in range(2)]
        attrs = SwiGLUAttrs()
        yield op_case("SwiGLU", attrs, inputs)
        attrs = SwiGLUAttrs(
            alpha=1.5,
        )
        yield op_case("SwiGLU", attrs, inputs)
