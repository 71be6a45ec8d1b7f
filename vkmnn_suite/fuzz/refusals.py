"""What vkmnn may refuse; every other error on a valid model is a failure."""

from __future__ import annotations

import re

from vkmnn.errors import InvalidInputError, ShapeError, UnsupportedOpError, VkmnnError

REFUSALS: tuple[tuple[type[VkmnnError], str, str], ...] = (
    (InvalidInputError, r"int32 cannot hold|32-bit integers", "64-bit integers on the device"),
    (UnsupportedOpError, r"neither kernel_shape nor the weight's shape", "symbolic kernel"),
    (UnsupportedOpError, r"the rank of '.*' is not known", "rank known at run time only"),
    (UnsupportedOpError, r"theta has None columns", "columns known at run time only"),
    # onnxruntime and PyTorch refuse it as well; the reference evaluator returns nothing.
    (ShapeError, r"a kernel of .* is larger than the padded .*\(Conv\)", "nothing to convolve"),
    # If the other size of a symbolic axis makes a model invalid, the oracle reports nothing.
    (ShapeError, r"query .* and key .* have different head sizes", "heads that do not fit"),
    (ShapeError, r"key .* and value .* have different lengths", "values for other keys"),
    (ShapeError, r"mask of shape .* does not broadcast to", "a mask for another length"),
    # ONNX requires a scale for every channel; its function body, which onnxruntime runs, repeats
    # one.
    (ShapeError, r"scale has shape \(1,\), expected .*\(GroupNormalization\)", "one scale for all"),
    (ShapeError, r"only real inputs have a redundant half", "one side of complex signals"),
)
"""Type of the error, a pattern of its message, and a short reason."""


def excuse(error: VkmnnError, message: str) -> str | None:
    """Return why an error is not a failure, or None."""
    for kind, pattern, reason in REFUSALS:
        if isinstance(error, kind) and re.search(pattern, message):
            return reason
    return None
