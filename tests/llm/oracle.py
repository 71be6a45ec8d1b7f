"""Greedy decoding in onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tests.onnxruntime_oracle import open_oracle


def greedy(path: Path, prompt: Sequence[int], count: int) -> list[int]:
    """Return the likeliest tokens after a prompt."""
    session = open_oracle(path)
    infos = session.get_inputs()
    names = {info.name for info in infos}
    past = {
        info.name: np.zeros((1, info.shape[1], 0, info.shape[3]), np.float32)
        for info in infos
        if info.name.startswith("past")
    }
    tokens, made = list(prompt), []
    held = 0
    for _ in range(count):
        feeds = {
            "input_ids": np.array([tokens], np.int64),
            "attention_mask": np.ones((1, held + len(tokens)), np.int64),
            "position_ids": np.arange(held, held + len(tokens))[None],
            "use_cache_branch": np.array([True]),
        }
        feeds = {name: value for name, value in feeds.items() if name in names}
        logits, *presents = session.run(None, {**feeds, **past})
        past = dict(zip(past, presents, strict=True))
        held += len(tokens)
        tokens = [int(logits[0, -1].argmax())]
        made += tokens
    return made
