"""Keys that ops share which are alike: plans do the work on them once.

Networks consist of layers, so most ops of a plan are like another one. Shapes (`shape/alike.py`),
lowered data movement (`geometry/alike.py`), prepared executions and recorded dispatches
(`vulkan/plan/alike.py`) are kept by such keys in a `Memo` (`base/memo.py`); whole layers that are
alike are left out of resolving (`core/alike_layers.py`).
"""

from __future__ import annotations

from collections.abc import Hashable

from vkmnn.base.memo import Memo
from vkmnn.ir.graph import Array
from vkmnn.ir.op_type import OpAttrs

MAX_ALIKE = 4096
"""Different ops whose results a `Memo` holds."""

MAX_CONTENT_BYTES = 256
"""Contents that ops go by are lists of a few integers; larger ones are not compared."""

_texts: Memo[int, tuple[OpAttrs, str]] = Memo(2 * MAX_ALIKE)


def attrs_text(attrs: OpAttrs) -> str:
    """Return text that is equal for attributes that are the same; it tells 0.0 from -0.0.

    The ops of a network are the same objects in all its plans, so that most are asked for once.
    """
    known = _texts.get(id(attrs))
    if known is None:
        known = _texts.keep(id(attrs), (attrs, repr(attrs)))  # kept, so that the id stays theirs
    return known[1]


def content_key(value: Array | None) -> Hashable:
    """Return a key that equal arrays share; `value` must not be larger than MAX_CONTENT_BYTES."""
    return None if value is None else (value.dtype.str, value.shape, value.tobytes())


def is_comparable(value: Array) -> bool:
    """Return whether an array is small enough for its content to be compared."""
    return value.nbytes <= MAX_CONTENT_BYTES
