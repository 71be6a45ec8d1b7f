"""The networks to export, with their inputs and sizes; free of torch, to load fast."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vkmnn.ir import Array

Sizes = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Input:
    """An input: name, shape (names denote sizes that may change), and its content.

    fill: "normal"; "tokens" (int64 ids below `limit`); "mask" (int64 ones, with zeros at the end).
    """

    name: str
    shape: tuple[int | str, ...]
    fill: str = "normal"
    limit: int = 0

    def make(self, sizes: Sizes, random: np.random.Generator) -> Array:
        """Return an array for the sizes."""
        shape = tuple(sizes[dim] if isinstance(dim, str) else dim for dim in self.shape)
        if self.fill == "normal":
            return random.standard_normal(shape, dtype=np.float32)
        if self.fill == "tokens":
            return random.integers(0, self.limit, shape, dtype=np.int64)
        visible = random.integers((shape[1] + 1) // 2, shape[1] + 1, (shape[0], 1))
        return (np.arange(shape[1]) < visible).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Case:
    """A network: a class of tests/networks/models.py, its arguments, inputs and sizes to run.

    `sizes[0]` is the usual size of the network. `multiples` are the numbers of which sizes must be
    multiples.
    """

    model: str
    inputs: tuple[Input, ...]
    sizes: tuple[Sizes, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    multiples: Mapping[str, int] = field(default_factory=dict)

    def feeds(self, sizes: Sizes, seed: int = 0) -> dict[str, Array]:
        """Return one array per input."""
        random = np.random.default_rng(seed)
        return {item.name: item.make(sizes, random) for item in self.inputs}


def _images(*sizes: tuple[int, int, int]) -> tuple[Sizes, ...]:
    return tuple({"N": n, "H": h, "W": w} for n, h, w in sizes)


def _texts(*sizes: tuple[int, int]) -> tuple[Sizes, ...]:
    return tuple({"N": n, "L": length} for n, length in sizes)


_PICTURE = (Input("x", ("N", 3, "H", "W")),)
_PICTURE_224 = (Input("x", ("N", 3, 224, 224)),)
_CLASSIFIER = _images((1, 224, 224), (2, 128, 160), (1, 101, 131))
_BERT = (
    Input("input_ids", ("N", "L"), "tokens", 30522),
    Input("attention_mask", ("N", "L"), "mask"),
    Input("token_type_ids", ("N", "L"), "tokens", 2),
)
_GPT = (Input("input_ids", ("N", "L"), "tokens", 50257),)
_SMALL = {"layers": 2, "width": 96, "heads": 4}

CASES = {
    "resnet50": Case("ResNet50", _PICTURE, _CLASSIFIER),
    "mobilenet_v2": Case("MobileNetV2", _PICTURE, _CLASSIFIER),
    "squeezenet1_1": Case("SqueezeNet11", _PICTURE, _CLASSIFIER),
    "unet": Case("UNet", _PICTURE, _images((1, 256, 256), (2, 64, 96), (1, 77, 101))),
    "yolov5s": Case(
        "YOLOv5s",
        _PICTURE,
        _images((1, 640, 640), (2, 160, 192), (1, 96, 224)),
        multiples={"H": 32, "W": 32},
    ),
    "espcn": Case(
        "ESPCN",
        (Input("x", ("N", 1, "H", "W")),),
        _images((1, 240, 320), (2, 120, 160), (1, 67, 89)),
    ),
    "vit_tiny": Case(
        "ViT",
        _PICTURE_224,
        ({"N": 1}, {"N": 2}, {"N": 3}),
        {"width": 192, "heads": 3, "attention": "VitAttention"},
    ),
    "vit_b16": Case(
        "ViT",
        _PICTURE_224,
        ({"N": 1}, {"N": 2}),
        {"width": 768, "heads": 12, "attention": "PackedAttention"},
    ),
    "bert_base": Case("Bert", _BERT, _texts((1, 128), (2, 64), (1, 37))),
    "gpt2": Case("GPT2", _GPT, _texts((1, 64), (2, 32), (1, 37))),
    # The other way to write attention, in small.
    "bert_fused": Case("Bert", _BERT, _texts((1, 64), (2, 32), (1, 37)), {**_SMALL, "fused": True}),
    "gpt2_plain": Case("GPT2", _GPT, _texts((1, 64), (2, 32), (1, 37)), {**_SMALL, "fused": False}),
}
