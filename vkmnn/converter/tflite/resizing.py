"""Resizing of images."""

from __future__ import annotations

from typing import Any

from vkmnn.converter.tflite.nodes import LiteOp, reads


@reads("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
def resize(op: LiteOp) -> None:
    """Resize to the height and width in the second input."""
    op.need(2)
    linear = op.type == "RESIZE_BILINEAR"
    aligned, half = op.flag("align_corners"), op.flag("half_pixel_centers")
    mode = "align_corners" if aligned else "half_pixel" if half else "asymmetric"
    options: dict[str, Any] = {
        "mode": "linear" if linear else "nearest",
        "coordinate_transformation_mode": mode,
    }
    if not linear:
        options["nearest_mode"] = "round_prefer_ceil" if aligned or half else "floor"

    def resized(x: str) -> str:
        given, shape = op.integers(1), op.shape_of(x)
        if given is not None and shape is not None and None not in shape[:2]:
            sizes = op.constant([*shape[:2], *given])
        else:
            start = op.make("Shape", x, end=2)
            sizes = op.make("Concat", start, op.vector(1), axis=0)
        return op.make("Resize", x, "", "", sizes, **options)

    if linear:
        op.averaged(4, resized, active=False)
    else:
        op.pass_first(resized(op.moved_first(0, 4)), 4)
