"""Rows of caches by the beginnings of texts, in blocks: a text reuses what another one computed."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from vkmnn.errors import VkmnnError
from vkmnn.ir import Array
from vkmnn.llm.sequence import Sequence as Cached

_log = logging.getLogger(__name__)

BLOCK = 32
"""Tokens of a block; one is found by all tokens up to its end."""

_SEEN = 1 << 16
"""Beginnings of texts that are remembered, so that their rows are kept the second time."""


class Prefixes:
    """Blocks of rows in the host's memory; the least recently used ones are dropped.

    A block is kept when its tokens begin a text for the second time: reading rows from a device
    costs time, which rows that are never used again would waste.

    Args:
        most: maximum bytes of all blocks.

    Attributes:
        most: the argument.
        held: bytes of all blocks.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._blocks: OrderedDict[bytes, dict[str, Array]] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self.held = 0

    def restore(self, tokens: Sequence[int], sequence: Cached, held: int) -> bool:
        """Copy the rows of the first tokens into a text's caches, if they are kept.

        Args:
            tokens: the prompt; its last token is never restored.
            sequence: the text.
            held: how many of the tokens its caches hold already.

        Returns:
            Whether they were copied; if not, nothing has changed.
        """
        found: list[dict[str, Array]] = []
        with self._lock:
            for key in _keys(tokens[:-1]):
                block = self._blocks.get(key)
                if block is None:
                    break
                self._blocks.move_to_end(key)
                found.append(block)
        if len(found) * BLOCK < held + BLOCK:
            return False
        sequence.warm_up()  # new caches do not know their axes
        axes = sequence.axes
        if not axes:
            return False
        rows = {
            name: np.concatenate([block[name] for block in found], axis)
            for name, axis in axes.items()
        }
        try:
            sequence.restore(tokens[: len(found) * BLOCK], rows)
        except VkmnnError as error:  # lack of memory, for example: the rows are computed instead
            _log.info("kept rows cannot be used: %s", error.message)
            return False
        return True

    def add(self, tokens: Sequence[int], sequence: Cached) -> None:
        """Keep the blocks of a prompt, now in a text's caches, that have occurred before."""
        axes = sequence.axes
        wanted: dict[int, bytes] = {}
        with self._lock:
            for number, key in enumerate(_keys(tokens)):
                if key in self._seen and key not in self._blocks:
                    wanted[number] = key
                self._seen[key] = None
                self._seen.move_to_end(key)
            while len(self._seen) > _SEEN:
                self._seen.popitem(last=False)
        if not wanted or not axes:
            return
        try:
            rows = sequence.rows()
        except VkmnnError as error:
            _log.info("rows cannot be kept: %s", error.message)
            return
        for number, key in wanted.items():
            self._keep(key, {name: _part(rows[name], axis, number) for name, axis in axes.items()})

    def _keep(self, key: bytes, block: Mapping[str, Array]) -> None:
        size = _size(block)
        with self._lock:
            if key in self._blocks or size > self.most:
                return
            self._blocks[key] = dict(block)
            self.held += size
            while self.held > self.most:
                self.held -= _size(self._blocks.popitem(last=False)[1])


def _size(block: Mapping[str, Array]) -> int:
    return sum(array.nbytes for array in block.values())


def _part(rows: Array, axis: int, number: int) -> Array:
    places = (*[slice(None)] * axis, slice(number * BLOCK, (number + 1) * BLOCK))
    return np.array(rows[places])


def _keys(tokens: Sequence[int]) -> list[bytes]:
    """Return a key for each whole block of tokens, which depends on all tokens up to its end."""
    digest, keys = blake2b(digest_size=16), []
    for end in range(BLOCK, len(tokens) + 1, BLOCK):
        digest.update(np.array(tokens[end - BLOCK : end], "<i4").tobytes())
        keys.append(digest.digest())
    return keys
