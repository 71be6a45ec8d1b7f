"""Text for calibration: cut into windows of tokens, some of which are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.llm.layout import Layout
from vkmnn.llm.text import Tokenizer
from vkmnn.quantization.sample_files import list_entries

WINDOW = 256
"""Tokens of a run, at most."""
_LEAST = 16
_HELD_OUT = 4
"""Every such window is held out."""
_MOST_TOKENS = 1 << 20

Tokens = Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """Windows of tokens: for calibration, and held out of it."""

    calibration: Sequence[Tokens]
    held_out: Sequence[Tokens]


def read_windows(
    data: str | Path, layout: Layout, most: int, tell: Callable[[str], object]
) -> Windows:
    """Return the windows of a text.

    Args:
        data: a text file, .jsonl, or a folder or pattern of these.
        layout: the model, with its tokenizer.
        most: maximum number of windows.
        tell: called with sentences on what was left out.

    Raises:
        InvalidInputError: there is no text, or too little of it.
        ModelFileError: the model has no tokenizer.
    """
    if not Tokenizer.is_in(layout.folder, layout.keys):
        raise ModelFileError(
            f"'{layout.folder}' has no tokenizer.json, which calibration by a text needs",
            hint="save the tokenizer next to the model, or leave out --calibrate",
        )
    tokenizer = Tokenizer(layout.folder, layout.keys)
    entries = list_entries(data, _MOST_TOKENS, tell)
    if entries[0].kind != "text":
        raise InvalidInputError(
            f"'{data}' holds no text", hint="give a .txt or .jsonl file, or a folder of these"
        )
    tokens: list[int] = []
    text = "\n".join(one.value for one in entries)
    for start in range(0, len(text), 1 << 16):  # a bounded piece of a long text at a time
        tokens += tokenizer.encode(text[start : start + (1 << 16)], special=False)
        if len(tokens) > _MOST_TOKENS:
            break
    first = [] if layout.bos is None else [layout.bos]
    size = min(WINDOW, layout.context or WINDOW, len(tokens) // 4) - len(first)
    if size < _LEAST:
        raise InvalidInputError(
            f"'{data}' has {len(tokens)} tokens, too few to calibrate and to measure on",
            hint="give some thousand words of the kind that the model will read",
        )
    starts = range(0, len(tokens) - size + 1, size)
    step = max(1, -(-len(starts) // most))
    if step > 1:
        tell(f"{len(starts[::step])} of {len(starts)} windows of {size} tokens are used; choose "
             "with --samples")  # fmt: skip
    windows = [[*first, *tokens[start : start + size]] for start in starts[::step]]
    held = windows[_HELD_OUT - 1 :: _HELD_OUT] or windows[-1:]
    return Windows([one for one in windows if one not in held], held)


def feeds_of(layout: Layout) -> Callable[[InferenceSession, Tokens], Mapping[str, Array]]:
    """Return a function that feeds a decoder tokens and empty caches."""

    def feeds(session: InferenceSession, tokens: Tokens) -> dict[str, Array]:
        count = len(tokens)
        values: Mapping[str, Array] = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, count)),
            "position_ids": np.arange(count)[None],
            "token_type_ids": np.zeros((1, count)),
            "cache_position": np.arange(count),
            "use_cache_branch": np.array([False]),
            "num_logits_to_keep": np.array(0),
            "logits_to_keep": np.array(0),
        }
        made = {}
        for arg in session.get_inputs():
            role = layout.names.get(arg.name, arg.name)
            value = values.get(role)
            if value is None:
                dims = [one if isinstance(one, int) else 0 for one in arg.shape or ()]
                value = np.zeros([dims[0] or 1, *dims[1:]] if dims else [])
            made[arg.name] = value.astype(arg.dtype)
        return made

    return feeds


def perplexity(
    session: InferenceSession,
    layout: Layout,
    windows: Sequence[Tokens],
    progress: Callable[[int], object],
) -> float:
    """Return exp of the mean negative log-likelihood of each window's tokens after the first.

    Args:
        session: the decoder.
        layout: its files.
        windows: tokens of each run.
        progress: called with the number of finished windows.
    """
    logits = next((k for k, v in layout.names.items() if v == "logits"), "logits")
    feeds = feeds_of(layout)
    total, count = 0.0, 0
    for number, window in enumerate(windows, 1):
        rows = session.run([logits], feeds(session, window))[0][0, :-1].astype(np.float64)
        if max(window) >= rows.shape[1]:
            raise ModelFileError(
                f"the tokenizer of '{layout.folder}' has a token {max(window)}, and the network "
                f"{rows.shape[1]} tokens",
                hint="the tokenizer belongs to another model",
            )
        rows -= rows.max(1, keepdims=True)
        likely = rows[np.arange(len(rows)), np.array(window[1:])]
        total += float((np.log(np.exp(rows).sum(1)) - likely).sum())
        count += len(rows)
        progress(number)
    return float(np.exp(min(total / max(count, 1), 700.0)))
