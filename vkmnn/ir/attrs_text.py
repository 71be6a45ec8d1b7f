"""Attributes as text, by which equal ones are known."""

from __future__ import annotations

from vkmnn.ir.op_type import OpAttrs

MAX_KNOWN = 8192
"""Maximum number of cached texts."""

_known: dict[int, tuple[OpAttrs, str]] = {}


def attrs_text(attrs: OpAttrs) -> str:
    """Return text that is equal for attributes that are the same; it tells 0.0 from -0.0.

    The ops of a network are the same objects in all its plans, so that most are asked for once.
    """
    known = _known.get(id(attrs))
    if known is None:
        if len(_known) >= MAX_KNOWN:
            _known.clear()
        known = _known[id(attrs)] = attrs, repr(attrs)  # kept, so that the id stays theirs
    return known[1]
