"""Keys of identical ops, so that plans do their work once.

Networks consist of layers, so most ops of a plan are identical to another one. Shapes
(`shape/alike.py`), lowered data movement (`geometry/alike.py`), prepared executions and recorded
dispatches (`vulkan/plan/alike.py`) are cached under these keys in a `Memo` (`base/memo.py`);
resolving skips whole identical layers (`core/alike_layers.py`).
"""

from __future__ import annotations

from collections.abc import Hashable

from vkmnn.base.memo import Memo
from vkmnn.ir.graph import Array
from vkmnn.ir.op_type import OpAttrs

MAX_ALIKE = 4096
"""Maximum number of different ops in a `Memo`."""

MAX_CONTENT_BYTES = 256
"""Maximum content size in keys: content that matters is a short list of integers."""

_texts: Memo[int, tuple[OpAttrs, str]] = Memo(2 * MAX_ALIKE)


def attrs_text(attrs: OpAttrs) -> str:
    """Return text that is equal for equal attributes; it distinguishes 0.0 from -0.0.

    The ops of a network are the same objects in all its plans, so most results are cached.
    """
    known = _texts.get(id(attrs))
    if known is None:
        known = _texts.keep(id(attrs), (attrs, repr(attrs)))  # alive, so its id stays unique
    return known[1]


def content_key(value: Array | None) -> Hashable:
    """Return a key that equal arrays share; `value` must not exceed MAX_CONTENT_BYTES."""
    return None if value is None else (value.dtype.str, value.shape, value.tobytes())


def is_comparable(value: Array) -> bool:
    """Return whether an array is small enough to compare its content."""
    return value.nbytes <= MAX_CONTENT_BYTES
