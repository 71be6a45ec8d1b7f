"""Tasks of texts end to end, against numpy and onnxruntime."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.llm import tiny
from tests.pipelines.networks import model_of
from vkmnn.llm.text import Tokenizer

pytest.importorskip("tokenizers")

_WIDE, _CLASSES = 8, 3


def encoder(folder: Path, output: str, *, length: Any = "s", **config: Any) -> dict[str, Any]:
    """Write an encoder whose rows are those of a table, and return its weights.

    Args:
        folder: where it goes, with a tokenizer.
        output: "logits" of classes, from the sum of the rows of tokens; or the rows.
        length: of texts.
        config: of config.json.
    """
    rng = np.random.default_rng(3)
    weights = {
        "table": rng.standard_normal((320, _WIDE)).astype(np.float32),
        "head": rng.standard_normal((_WIDE, _CLASSES)).astype(np.float32),
        "last": np.array([-1], np.int64),
        "middle": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["column"]),
    ]
    shape: list[Any] = ["b", "s", _WIDE]
    if output == "logits":
        nodes += [
            helper.make_node("Mul", ["rows", "column"], ["kept"]),
            helper.make_node("ReduceSum", ["kept", "middle"], ["sum"], keepdims=0),
            helper.make_node("MatMul", ["sum", "head"], ["logits"]),
        ]
        shape = ["b", _CLASSES]
    else:
        nodes += [helper.make_node("Mul", ["rows", "column"], [output])]
    inputs = dict.fromkeys(("input_ids", "attention_mask"), (TensorProto.INT64, ["b", length]))
    model = model_of(nodes, inputs, {output: (TensorProto.FLOAT, shape)}, weights)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    (folder / "config.json").write_text(json.dumps(config))
    tiny.write_tokenizer(folder, None)
    return weights


def rows_of(folder: Path, weights: dict[str, Any], text: str) -> Any:
    return weights["table"][Tokenizer(folder).encode(text)]


@pytest.mark.parametrize("problem", ["", "multi_label_classification", "regression"])
def test_classes_are_those_of_the_files(tmp_path: Path, problem: str) -> None:
    names = {"0": "bad", "1": "fair", "2": "good"}
    weights = encoder(tmp_path, "logits", architectures=["XForSequenceClassification"],
                      id2label=names, problem_type=problem or None)  # fmt: skip
    said: list[str] = []
    with vkmnn.pipeline(None, tmp_path, device="cpu", tell=said.append) as pipe:
        assert pipe.task == "text-classification"
        found = pipe("the quick brown fox")
        several = pipe(["naïve café", "the lazy dog"], top=1)
    logits = rows_of(tmp_path, weights, "the quick brown fox").sum(0) @ weights["head"]
    e = np.exp(logits - logits.max())
    want = {"": e / e.sum(), "multi_label_classification": 1 / (1 + np.exp(-logits)),
            "regression": logits}[problem]  # fmt: skip
    np.testing.assert_allclose(found.scores, want, rtol=1e-4, atol=1e-6)
    best = int(want.argmax())
    assert found[0].name == names[str(best)]
    assert said == []
    assert json.loads(found.to_json())[0]["label"] == names[str(best)]
    assert [len(one) for one in several] == [1, 1]
    found.save(tmp_path / "out.json")


def test_what_no_file_says_is_guessed(tmp_path: Path) -> None:
    encoder(tmp_path, "logits")
    said: list[str] = []
    with vkmnn.pipeline(None, tmp_path, device="cpu", tell=said.append) as pipe:
        pipe("a text")
    assert [note.partition("choose with ")[2].split()[0] for note in said] == ["--task", "--labels"]


@pytest.mark.parametrize("length", ["s", 12])
def test_long_texts_are_cut_only_if_asked(tmp_path: Path, length: Any) -> None:
    weights = encoder(tmp_path, "logits", length=length, max_position_embeddings=12)
    text = "the quick brown fox " * 9
    with vkmnn.pipeline("classify-text", tmp_path, device="cpu", tell=list) as pipe:
        with pytest.raises(vkmnn.InvalidInputError, match="the model takes 12") as caught:
            pipe(text)
        assert "truncate" in caught.value.hint
        found = pipe(text, truncate=True)
        short = pipe("the dog")
        with pytest.raises(vkmnn.InvalidInputError, match="neither true nor false"):
            pipe(text, truncate="yes")
        with pytest.raises(vkmnn.InvalidInputError, match="a text is a str"):
            pipe(3)
    for result, rows in (
        (found, rows_of(tmp_path, weights, text)[:12]),
        (short, rows_of(tmp_path, weights, "the dog")),
    ):
        logits = rows.sum(0) @ weights["head"]
        e = np.exp(logits - logits.max())
        np.testing.assert_allclose(result.scores, e / e.sum(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "last", None])
@pytest.mark.parametrize("task", ["embed", None])
def test_vectors_are_pooled_as_the_files_say(
    tmp_path: Path, pooling: str | None, task: str | None
) -> None:
    weights = encoder(tmp_path, "last_hidden_state")
    keys = {"mean": "pooling_mode_mean_tokens", "cls": "pooling_mode_cls_token",
            "max": "pooling_mode_max_tokens", "last": "pooling_mode_lasttoken"}  # fmt: skip
    if pooling:
        (tmp_path / "1_Pooling").mkdir()
        flags = {key: name == pooling for name, key in keys.items()}
        (tmp_path / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    (tmp_path / "README.md").write_text("---\npipeline_tag: sentence-similarity\n---\n")
    said: list[str] = []
    with vkmnn.pipeline(task, tmp_path, device="cpu", tell=said.append) as pipe:
        assert pipe.task == "feature-extraction"
        first, second = pipe(["the quick brown fox", "language models"])
    assert bool(said) == (pooling is None)
    reduced = {"mean": lambda r: r.mean(0), "cls": lambda r: r[0], "max": lambda r: r.max(0),
               "last": lambda r: r[-1]}[pooling or "mean"]  # fmt: skip
    want = reduced(rows_of(tmp_path, weights, "the quick brown fox"))
    np.testing.assert_allclose(first.vector, want / np.linalg.norm(want), rtol=1e-4, atol=1e-6)
    assert first.similarity(first) == pytest.approx(1, abs=1e-5)
    assert first.similarity(second) < 0.999


def test_layers_behind_the_pooling_are_refused(tmp_path: Path) -> None:
    encoder(tmp_path, "last_hidden_state")
    (tmp_path / "2_Dense").mkdir()
    with (
        vkmnn.pipeline("feature-extraction", tmp_path, device="cpu") as pipe,
        pytest.raises(vkmnn.InvalidInputError, match="behind them"),
    ):
        pipe("a text")
    with vkmnn.pipeline("embed-text", tmp_path, device="cpu", pooling="cls") as pipe:
        assert len(pipe("a text").vector) == _WIDE


def test_a_task_has_one_name_for_pictures_and_texts(tmp_path: Path) -> None:
    from tests.pipelines.networks import classifier

    path = classifier(tmp_path / "m.onnx")
    for task in ("text-classification", "feature-extraction"):
        with vkmnn.pipeline(task, path, device="cpu", tell=list) as pipe:
            assert pipe.task.startswith("image-")
    encoder(tmp_path / "text", "logits")
    with vkmnn.pipeline("classify", tmp_path / "text", device="cpu", tell=list) as pipe:
        assert pipe.task == "text-classification"


def test_networks_of_other_things_are_refused(tmp_path: Path) -> None:
    inputs = {"samples": (TensorProto.FLOAT, [1, 9])}
    node = helper.make_node("Identity", ["samples"], ["y"])
    model = model_of([node], inputs, {"y": (TensorProto.FLOAT, [1, 9])}, {})
    with pytest.raises(vkmnn.InvalidInputError, match="is no encoder of texts"):
        vkmnn.pipeline("text-classification", model, device="cpu")


def test_pairs_of_texts(tmp_path: Path) -> None:
    weights = encoder(tmp_path, "logits", architectures=["BertForSequenceClassification"],
                      max_position_embeddings=9)  # fmt: skip
    tokenizer = Tokenizer(tmp_path)
    first, second = tokenizer.encode("the fox"), tokenizer.encode("the lazy dog writes tokens")
    tokens, types, places = tokenizer.encode_pair("the fox", "the lazy dog writes tokens")
    assert tokens == [*first, *second]
    assert places == list(range(len(first), len(tokens)))
    assert [types[place] for place in places] == [1] * len(second)
    pair = {"text": "the fox", "text_pair": "the lazy dog writes tokens"}
    with vkmnn.pipeline("text-classification", tmp_path, device="cpu") as pipe:
        found = pipe(pair, truncate=True)
        kept = [*first, *second][:9]
        logits = weights["table"][kept].sum(0) @ weights["head"]
        want = np.exp(logits - logits.max())
        np.testing.assert_allclose(found.scores, want / want.sum(), rtol=1e-4)
        assert found.tokens == 9
        with pytest.raises(vkmnn.InvalidInputError, match="the model takes 9"):
            pipe(pair)
        with pytest.raises(vkmnn.InvalidInputError, match="other keys"):
            pipe({"text": "x"})
