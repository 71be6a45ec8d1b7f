"""The behaviour of every op along each axis, declared once, next to its shape rules.

`loops_of` returns the loops of any op; axes without a loop are unknown and left alone.
"""

from __future__ import annotations

from vkmnn.shape.axes import (  # noqa: F401 - they declare
    gathering,
    movement,
    products,
    rows,
    windows,
)
from vkmnn.shape.axes.elementwise import elementwise, elementwise_same_shape, is_elementwise
from vkmnn.shape.axes.loops import (
    AXES,
    NEUTRAL,
    Kind,
    Known,
    Loop,
    Numbering,
    Window,
    axes_of,
    common_loop,
    is_broadcast,
    loops_of,
    mixed,
    numbering_of,
    parallel,
    reduction,
    sliding,
    with_sizes,
)

__all__ = [
    "AXES",
    "NEUTRAL",
    "Kind",
    "Known",
    "Loop",
    "Numbering",
    "Window",
    "axes_of",
    "common_loop",
    "elementwise",
    "elementwise_same_shape",
    "is_broadcast",
    "is_elementwise",
    "loops_of",
    "mixed",
    "numbering_of",
    "parallel",
    "reduction",
    "sliding",
    "with_sizes",
]
