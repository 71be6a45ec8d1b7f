"""Encoders with decoders, opened for a task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vkmnn.errors import InvalidInputError
from vkmnn.llm import load_seq2seq
from vkmnn.llm.seq2seq import Seq2SeqModel
from vkmnn.pipelines.options import Options


def open_seq2seq(model: Any, options: Options, task: str, capacity: int) -> Seq2SeqModel:
    """Open an encoder with its decoder for a task.

    Raises:
        InvalidInputError: the model is no folder.
        VkmnnError: as `vkmnn.llm.load_seq2seq`.
    """
    if not isinstance(model, str | Path):
        raise InvalidInputError(f"a model of '{task}' is a folder", hint="pass its path")
    return load_seq2seq(
        model,
        options.device,
        capacity=capacity,
        precision=options.precision,
        on_overflow=options.on_overflow,
    )
