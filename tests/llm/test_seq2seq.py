"""Encoders with decoders: the same tokens as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import vkmnn
from tests.llm import tiny

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")


def greedy(folder: Path, source: list[int], count: int) -> list[int]:
    """Decode without caches, the whole text in each step."""
    encoder = onnxruntime.InferenceSession(folder / "encoder_model.onnx")
    decoder = onnxruntime.InferenceSession(folder / "decoder_model.onnx")
    with_past = onnxruntime.InferenceSession(folder / "decoder_with_past_model.onnx")
    mask = np.ones((1, len(source)), np.int64)
    (hidden,) = encoder.run(None, {"input_ids": np.array([source]), "attention_mask": mask})
    feeds = {"encoder_attention_mask": mask, "input_ids": np.array([[0]])}
    logits, *caches = decoder.run(None, {**feeds, "encoder_hidden_states": hidden})
    names = [info.name for info in with_past.get_inputs() if info.name.startswith("past")]
    tokens = [int(logits[0, -1].argmax())]
    while len(tokens) < count:
        feeds["input_ids"] = np.array([tokens[-1:]])
        logits, *made = with_past.run(None, {**feeds, **dict(zip(names, caches, strict=True))})
        caches = [*made[:2], *caches[2:]]
        tokens.append(int(logits[0, -1].argmax()))
    return tokens


@pytest.mark.parametrize("merged", [True, False])
def test_tokens_are_those_of_onnxruntime(merged: bool, tmp_path: Path) -> None:
    plain = tiny.seq2seq_folder(tmp_path / "plain", merged=False)
    folder = tiny.seq2seq_folder(tmp_path / "merged") if merged else plain
    with vkmnn.llm.load_seq2seq(folder, capacity=64) as model:
        for source in ([5, 9, 200], [17, 33, 4, 4, 80, 3, 12], [8] * 20):
            made = model.generate(source, 12)
            want = greedy(plain, source, 12)
            ends = want.index(319) if 319 in want else 12
            assert made.tokens == want[:ends]
        text = model.generate("the quick", 5)
        assert text.text == model.tokenizer.decode(text.tokens)
        with pytest.raises(vkmnn.InvalidInputError, match="source is empty"):
            model.generate([], 3)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = tiny.seq2seq_folder(tmp_path, merged=False)
    with pytest.raises(vkmnn.ModelFileError, match="of the kind seq2seq"):
        vkmnn.llm.load(folder)
    (folder / "decoder_model.onnx").unlink()
    with pytest.raises(vkmnn.ModelFileError, match="no decoder with caches"):
        vkmnn.llm.load_seq2seq(folder)
