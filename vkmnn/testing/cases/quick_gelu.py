"""Cases of `quick_gelu`."""

from __future__ import annotations

from collections.abc import Iterator

import vkmnn.operators.quick_gelu  # noqa: F401 - registers what numpy computes
from vkmnn.ir.ops import QuickGeluAttrs
from vkmnn.testing.case import Case, Variant, op_case, shader_cases
from vkmnn.testing.cases.shapes import SHAPES, floats


@shader_cases("quick_gelu")
def _cases(variant: Variant) -> Iterator[Case]:
    for shape in SHAPES:
        inputs = [floats(*shape, seed=seed) for seed in range(1)]
        attrs = QuickGeluAttrs()
        yield op_case("QuickGelu", attrs, inputs)
        attrs = QuickGeluAttrs(
            alpha=2.202,
        )
        yield op_case("QuickGelu", attrs, inputs)
