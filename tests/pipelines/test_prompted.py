"""Masks by points, and pictures against words: networks of several files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkmnn
from tests.pipelines.networks import canned, model_of

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


def decoder(path: Path, names: tuple[str, str, str]) -> None:
    """Save a decoder whose mask is all that lies left of the first point."""
    points, labels, embeddings = names
    rank = 3 if points == "point_coords" else 4
    grid = np.tile((np.arange(256, dtype=np.float32) + 0.5) * 4, (1, 1, 256, 1))
    nodes = [
        helper.make_node("Reshape", [points, "flat"], ["pairs"]),
        helper.make_node("Gather", ["pairs", "first"], ["x"], axis=0),
        helper.make_node("ReduceMean", [embeddings], ["mean"], keepdims=0),
        helper.make_node("Clip", ["mean", "zero", "zero"], ["nothing"]),
        helper.make_node("Add", ["x", "nothing"], ["at"]),
        helper.make_node("Sub", ["at", "grid"], ["left"]),
        helper.make_node("Sub", ["grid", "at"], ["right"]),
        helper.make_node("Concat", ["right", "left"], ["low_res_masks"], axis=1),
        helper.make_node("Add", ["scores", "nothing"], ["iou_predictions"]),
    ]
    weights = {"flat": np.array([-1]), "first": np.array(0), "grid": grid,
               "zero": np.zeros((), np.float32),
               "scores": np.array([[0.2, 0.9]], np.float32)}  # fmt: skip
    dims: list[object] = [1, "n", 2] if rank == 3 else [1, 1, "n", 2]
    inputs = {points: (FLOAT, dims), labels: (FLOAT if rank == 3 else INT64, dims[:-1]),
              embeddings: (FLOAT, [1, 4, 8, 8])}  # fmt: skip
    if rank == 3:
        inputs |= {"mask_input": (FLOAT, [1, 1, 256, 256]), "has_mask_input": (FLOAT, [1]),
                   "orig_im_size": (FLOAT, [2])}  # fmt: skip
    outputs = {"low_res_masks": (FLOAT, [1, 2, 256, 256]), "iou_predictions": (FLOAT, [1, 2])}
    onnx.save(model_of(nodes, inputs, outputs, weights), path)


@pytest.mark.parametrize(
    "names",
    [
        ("point_coords", "point_labels", "image_embeddings"),
        ("input_points", "input_labels", "image_embeddings"),
    ],
)
def test_points_and_boxes(tmp_path: Path, street: Path, names: tuple[str, str, str]) -> None:
    codes = np.zeros((1, 4, 8, 8), np.float32)
    canned(tmp_path / "vision_encoder.onnx", {"image_embeddings": codes}, (1, 3, 1024, 1024),
           name="pixel_values")  # fmt: skip
    decoder(tmp_path / "prompt_encoder_mask_decoder.onnx", names)
    with vkmnn.pipeline(None, tmp_path, device="cpu", tell=list) as pipe:
        assert pipe.task == "mask-generation"
        (found,) = pipe(street, points=[(50, 60)])
        assert found.label.score == pytest.approx(0.9)
        want = np.zeros((120, 200), bool)
        want[:, :50] = True
        assert (found.pixels == want).mean() > 0.98
        first, second = pipe(street, boxes=[(20, 5, 90, 50), (120, 5, 150, 50)])
        assert first.pixels[:, :19].all()
        assert not first.pixels[:, 22:].any()
        assert second.pixels[:, :118].all()
        assert len(pipe(street, points=[(50, 60)], several=True)) == 2
        with pytest.raises(vkmnn.InvalidInputError, match="no point or box selects an object"):
            pipe(street)
        with pytest.raises(vkmnn.InvalidInputError, match="is not a list of 2 numbers"):
            pipe(street, points="middle")


def words_folder(folder: Path) -> None:
    """Save CLIP's two networks; the vector of a text is a row for its middle token."""
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {word: n for n, word in enumerate(["<s>", "cat", "dog", "a", "</s>"])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "a"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(folder / "tokenizer.json"))
    canned(folder / "vision_model.onnx", {"image_embeds": np.array([[0.6, 0.8]], np.float32)},
           (1, 3, 32, 32), name="pixel_values")  # fmt: skip
    rows = np.array([[0, 0], [1, 0], [0, 1], [0, 0], [0, 0]], np.float32)
    nodes = [
        helper.make_node("Gather", ["rows", "input_ids"], ["all"], axis=0),
        helper.make_node("ReduceSum", ["all", "axis"], ["text_embeds"], keepdims=0),
    ]
    model = model_of(nodes, {"input_ids": (INT64, ["n", "t"])}, {"text_embeds": (FLOAT, ["n", 2])},
                     {"rows": rows, "axis": np.array([1])})  # fmt: skip
    onnx.save(model, folder / "text_model.onnx")


def test_pictures_against_words(tmp_path: Path, street: Path) -> None:
    words_folder(tmp_path)
    with vkmnn.pipeline(None, tmp_path, device="cpu", labels=["cat", "dog"], tell=list,
                        template="a {}") as pipe:  # fmt: skip
        assert pipe.task == "zero-shot-image-classification"
        found = pipe(street)
        scores = np.exp(100 * np.array([0.6, 0.8]) - 80)
        assert [one.name for one in found] == ["dog", "cat"]
        np.testing.assert_allclose(found.scores, scores / scores.sum(), rtol=1e-4)
        np.testing.assert_allclose(pipe.embed_texts(["dog"]), [[0, 1]])
    with (
        vkmnn.pipeline("clip", tmp_path, device="cpu", tell=list) as pipe,
        pytest.raises(vkmnn.InvalidInputError, match="no labels to choose from"),
    ):
        pipe(street)
