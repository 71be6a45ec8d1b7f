"""Compressed bodies."""

from __future__ import annotations

import zlib

COMPRESSIONS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""Content-Encoding -> zlib's number for its format."""

_LEVEL = 1


def compressed(body: bytes, how: str) -> bytes:
    """Compress a body."""
    made = zlib.compressobj(_LEVEL, zlib.DEFLATED, COMPRESSIONS[how])
    return made.compress(body) + made.flush()


def decompressed(body: bytes, how: str, most: int) -> bytes:
    """Decompress a body; return `most` bytes and one more if it is larger.

    Raises:
        ValueError: it is damaged or incomplete.
    """
    reader = zlib.decompressobj(COMPRESSIONS[how])
    try:
        made = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from error
    if len(made) <= most and (not reader.eof or reader.unused_data):
        raise ValueError("it is not one complete stream")
    return made
