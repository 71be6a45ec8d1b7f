"""Encoders with decoders: the same tokens as in onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import vkmnn
from tests.llm import tiny
from tests.onnxruntime_oracle import open_oracle
from vkmnn.llm.spectrogram import log_mel

pytest.importorskip("onnxruntime")
pytest.importorskip("tokenizers")


def greedy(folder: Path, source: list[int], count: int) -> list[int]:
    """Decode without caches, the whole sequence in each step."""
    encoder = open_oracle(folder / "encoder_model.onnx")
    mask = np.ones((1, len(source)), np.int64)
    (hidden,) = encoder.run(None, {"input_ids": np.array([source]), "attention_mask": mask})
    return decoded(folder, hidden, {"encoder_attention_mask": mask}, count)


def decoded(folder: Path, hidden: np.ndarray, mask: dict[str, np.ndarray], count: int) -> list[int]:
    """Decode the result of an encoder."""
    decoder = open_oracle(folder / "decoder_model.onnx")
    with_past = open_oracle(folder / "decoder_with_past_model.onnx")
    feeds = {**mask, "input_ids": np.array([[0]])}
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


def speech_folder(folder: Path) -> Path:
    """Write a model that hears: a convolution over 7 bands and 20 frames, and a decoder."""
    tiny.seq2seq_folder(folder, merged=False)
    info = onnx.helper.make_tensor_value_info
    weights = np.random.default_rng(4).standard_normal((tiny._WIDE, 7, 3)).astype(np.float32)
    nodes = [onnx.helper.make_node("Conv", ["input_features", "w"], ["x"], strides=[2],
                                   pads=[1, 1]),
             onnx.helper.make_node("Transpose", ["x"], ["last_hidden_state"],
                                   perm=[0, 2, 1])]  # fmt: skip
    graph = onnx.helper.make_graph(
        nodes, "encoder", [info("input_features", 1, ["b", 7, 20])],
        [info("last_hidden_state", 1, ["b", 10, tiny._WIDE])],
        [onnx.numpy_helper.from_array(weights, "w")],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 17)]
    encoder = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(encoder, str(folder / "encoder_model.onnx"))
    for name in ("decoder_model.onnx", "decoder_with_past_model.onnx"):
        model = onnx.load(str(folder / name))
        mask = next(one for one in model.graph.input if one.name == "encoder_attention_mask")
        model.graph.input.remove(mask)
        ones = np.ones((1, 10), np.int64)
        model.graph.initializer.append(onnx.numpy_helper.from_array(ones, mask.name))
        onnx.save(model, str(folder / name))
    return folder


def test_sounds_and_spectrograms(tmp_path: Path) -> None:
    folder = speech_folder(tmp_path)
    sound = np.sin(np.arange(2500) * 0.15) * 0.4
    features = log_mel(sound, 7, 0.2)
    encoder = open_oracle(folder / "encoder_model.onnx")
    (hidden,) = encoder.run(None, {"input_features": features})
    want = decoded(folder, hidden, {}, 10)
    ends = want.index(319) if 319 in want else 10
    with vkmnn.llm.load_seq2seq(folder, capacity=64) as model:
        for source in (sound, sound.astype(np.float32), features, features[0]):
            assert model.generate(source, 10).tokens == want[:ends]
        with pytest.raises(vkmnn.InvalidInputError, match="is not supported"):
            model.generate(np.zeros(100, np.int16), 3)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    folder = tiny.seq2seq_folder(tmp_path, merged=False)
    with pytest.raises(vkmnn.ModelFileError, match="of the kind seq2seq"):
        vkmnn.llm.load(folder)
    (folder / "decoder_model.onnx").unlink()
    with pytest.raises(vkmnn.ModelFileError, match="no decoder with caches"):
        vkmnn.llm.load_seq2seq(folder)
