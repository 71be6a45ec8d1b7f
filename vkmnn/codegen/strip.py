"""Strips names from SPIR-V: only people read them, no driver needs them."""

from __future__ import annotations

from array import array

_HEADER_WORDS = 5
# Numbers of the SPIR-V specification, "Debug Instructions" (strings may be used by others).
_OP_SOURCE_CONTINUED, _OP_SOURCE, _OP_SOURCE_EXTENSION = 2, 3, 4
_OP_NAME, _OP_MEMBER_NAME, _OP_LINE, _OP_NO_LINE, _OP_MODULE_PROCESSED = 5, 6, 8, 317, 330
_DEBUG = frozenset(
    {
        *(_OP_SOURCE_CONTINUED, _OP_SOURCE, _OP_SOURCE_EXTENSION, _OP_NAME, _OP_MEMBER_NAME),
        *(_OP_LINE, _OP_NO_LINE, _OP_MODULE_PROCESSED),
    }
)


def without_names(code: bytes) -> bytes:
    """Return a module without names and source, which means the same.

    Args:
        code: a valid SPIR-V module in the byte order of the machine.
    """
    words = array("I", code)
    out = words[:_HEADER_WORDS]
    at = _HEADER_WORDS
    while at < len(words):
        length = words[at] >> 16
        if words[at] & 0xFFFF not in _DEBUG:
            out += words[at : at + length]
        at += length
    return out.tobytes()
