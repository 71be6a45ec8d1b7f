"""The experts of gpt-oss in safetensors, as GGUF files have them: gate, up and down apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.language.blocks import MXFP4, U8, Bytes
from vkmnn.converter.language.stored import PART, StoredTensor, opened, read_bytes
from vkmnn.ir import Array

_EXPERTS = re.compile(r"(?P<layer>.*)\.experts\.(?P<part>gate_up_proj|down_proj)(?P<bias>_bias)?")
_SPLIT = {"gate_up_proj": {"gate_exps": (0, 2), "up_exps": (1, 2)},
          "down_proj": {"down_exps": (0, 1)}}  # fmt: skip
"""The matrices in a tensor: the first row of each, and the distance to the next one."""
_BLOCKS, _SCALES = "_blocks", "_scales"
_NOT_A_NUMBER = 255
"""The scale that stands for NaN in the OCP's specification of microscaling formats."""


@dataclass(frozen=True, slots=True)
class _Selected(StoredTensor):
    """Every second row of a tensor, or all rows; `offset` counts bytes from the first one's start.

    Attributes:
        source: the tensor.
        first: the first of its rows.
        every: the distance between rows.
    """

    source: StoredTensor
    first: int
    every: int


@dataclass(frozen=True, slots=True)
class _Microscaled(_Selected):
    """Matrices in MXFP4, with blocks and scales in two tensors.

    Attributes:
        scales: uint8 [experts, rows, blocks].
    """

    scales: StoredTensor

    def _parts(self) -> Iterator[tuple[slice, Bytes]]:
        """Yield blocks as GGUF files have them; see `StoredTensor`."""
        width, rows = self.shape[-1] // MXFP4.count, self.rows
        step, start = 2 * max(1, PART // 2 // self.shape[-1]), self.offset // self.row_bytes
        with opened(self.source) as codes, opened(self.scales) as scales:
            for begin in range(0, rows, step):
                count = min(step, rows - begin)
                row = self.first + self.every * (start + begin)
                found = np.empty((count, width, MXFP4.nbytes), np.uint8)
                size = self.every * (count - 1) + 1, width, MXFP4.nbytes - 1
                packed = read_bytes(codes, self.source, row * width * size[-1], size)
                found[..., :1] = read_bytes(scales, self.scales, row * width, (*size[:2], 1))[
                    :: self.every
                ]
                if found[..., 0].max() == _NOT_A_NUMBER:
                    raise self.scales.damaged("a scale is not a number")
                low, high = np.split(packed[:: self.every], 2, axis=-1)
                # Here neighbours share a byte; in GGUF files, the two halves of a block do.
                found[..., 1::2] = low & 15 | high << 4
                found[..., 2::2] = low >> 4 | high & 0xF0
                yield slice(begin, begin + count), found


@dataclass(frozen=True, slots=True)
class _Transposed(_Selected):
    """Matrices of floats, [experts, depth, rows] in the file."""

    def floats(self) -> Array:
        """Return the elements as float32."""
        depth, rows = self.source.shape[1:]
        expert = self.row_bytes * (rows // self.every)
        one = replace(self.source, shape=(self.nbytes // expert * depth, rows),
                      offset=self.source.offset
                      + self.offset // expert * depth * self.source.row_bytes)  # fmt: skip
        found = one.floats().reshape(-1, depth, rows).swapaxes(1, 2)[:, self.first :: self.every]
        return np.ascontiguousarray(found).reshape(self.shape)


@dataclass(frozen=True, slots=True)
class _Alternate(_Selected):
    """Biases, [experts, rows]."""

    def floats(self) -> Array:
        """Return the elements as float32."""
        return self.source.floats()[:, self.first :: self.every]


def with_experts(
    tensors: Mapping[str, StoredTensor],
) -> tuple[dict[str, StoredTensor], dict[str, str]]:
    """Return tensors with the experts of gpt-oss apart, and the types of unread tensors.

    Args:
        tensors: all tensors of a folder, those of bytes among them.

    Raises:
        ModelFileError: the shapes of blocks and scales, or of experts, contradict each other.
    """
    found: dict[str, StoredTensor] = {}
    others: dict[str, str] = {}
    for name, tensor in tensors.items():
        whole = name.removesuffix(_BLOCKS) if tensor.type is U8 else name
        match = _EXPERTS.fullmatch(whole)
        if tensor.type is not U8:
            found |= {name: tensor} if match is None else _apart(match, tensor)
            continue
        scales = tensors.get(whole + _SCALES)
        if match is not None and whole != name and scales is not None and scales.type is U8:
            found |= _microscaled(match, tensor, scales)
        elif not (name.endswith(_SCALES) and name.removesuffix(_SCALES) + _BLOCKS in tensors):
            others[name] = U8.name
    return found, others


def _microscaled(
    match: re.Match[str], blocks: StoredTensor, scales: StoredTensor
) -> dict[str, StoredTensor]:
    """Return the matrices in blocks and scales, [experts, rows, depth / 32, 16 or none]."""
    shape = blocks.shape
    if len(shape) != 4 or shape[3] != MXFP4.nbytes - 1 or shape[:3] != scales.shape:
        raise blocks.damaged(f"its shape is {list(shape)}, that of scales {list(scales.shape)}")
    return {
        name: _Microscaled(
            *(blocks.path, blocks.name, MXFP4, (shape[0], rows, shape[2] * MXFP4.count), 0),
            *(blocks.version, blocks, first, every, scales),
        )
        for name, rows, first, every in _matrices(match, blocks, shape[1])
    }


def _apart(match: re.Match[str], tensor: StoredTensor) -> dict[str, StoredTensor]:
    """Return the matrices or biases in a tensor of floats."""
    shape, kind = tensor.shape, _Alternate if match["bias"] else _Transposed
    if len(shape) != (2 if match["bias"] else 3):
        raise tensor.damaged(f"its shape is {list(shape)}")
    return {
        name: kind(
            *(tensor.path, tensor.name, tensor.type, (shape[0], rows, *shape[1:-1]), 0),
            *(tensor.version, tensor, first, every),
        )
        for name, rows, first, every in _matrices(match, tensor, shape[-1])
    }


def _matrices(
    match: re.Match[str], tensor: StoredTensor, rows: int
) -> Iterator[tuple[str, int, int, int]]:
    """Yield name, number of rows, first row and distance of rows of each matrix in a tensor."""
    kind = "bias" if match["bias"] else "weight"
    for part, (first, every) in _SPLIT[match["part"]].items():
        if rows % every:
            raise tensor.damaged(f"it has {rows} rows, for {every} matrices")
        yield f"{match['layer']}.{part}.{kind}", rows // every, first, every
