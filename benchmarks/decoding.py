"""The cost of growing caches: a token with `session.state`, and with a fixed-length network."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter

import numpy as np

import vkmnn

TOKENS = 64
FIXED = 40
"""Rows of the caches of the network at a fixed length: about the average of the text."""
WARM_UP = 4
VOCABULARY = 512


@dataclass(frozen=True, slots=True)
class Decoder:
    """Sizes of a decoder."""

    layers: int = 4
    width: int = 128
    heads: int = 4


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """Median seconds of a token, with caches that grow and at one length."""

    growing: float
    fixed: float


def measure(sizes: Decoder, device: str, tokens: int = TOKENS) -> TokenTimes:
    """Generate a text; for each token, run the fixed-length network, with caches from the host."""
    from tests.networks.decoders import decoder

    proto = decoder(sizes.layers, sizes.width, sizes.heads, VOCABULARY)
    names = [f"past.{n}.{part}" for n in range(sizes.layers) for part in ("key", "value")]
    rows = (1, sizes.heads, FIXED, sizes.width // sizes.heads)
    fixed = {
        "input_ids": np.array([[3]]),
        "attention_mask": np.ones((1, FIXED + 1), np.int64),
        **{name: np.zeros(rows, np.float32) for name in names},
    }
    with (
        vkmnn.InferenceSession(proto, device) as session,
        vkmnn.InferenceSession(proto, device) as other,
    ):
        state = session.state({"past.*": "present.*"}, capacity=tokens + 8)
        ids = np.array([[3, 1, 4, 1, 5]])
        times: list[tuple[float, float]] = []
        for _ in range(tokens):
            start = perf_counter()
            other.run(["logits"], fixed)
            middle = perf_counter()
            mask = np.ones((1, state.length + ids.shape[1]), np.int64)
            (logits,) = state.run(["logits"], {"input_ids": ids, "attention_mask": mask})
            ids = logits[:, -1:].argmax(-1)
            times.append((perf_counter() - middle, middle - start))
    growing, at_one = zip(*times[min(WARM_UP, tokens - 1) :], strict=True)
    return TokenTimes(median(growing), median(at_one))
