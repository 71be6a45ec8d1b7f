"""`vkmnn quantize` on files of samples: preprocessing, targets, sensitivity, equal ranges."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from tests.cli.conftest import Cli, cli
from tests.device_infos import LARGE_GPU
from tests.onnxruntime_oracle import open_oracle
from tests.pipelines.networks import classifier
from vkmnn.errors import InvalidInputError
from vkmnn.pipelines import PicturePipeline, pipeline
from vkmnn.quantization import TargetMissedError
from vkmnn.quantization.blocks import pack
from vkmnn.quantization.calibration import as_arrays
from vkmnn.quantization.sample_files import list_entries
from vkmnn.quantization.sample_list import Reading, Samples
from vkmnn.quantization.samples import open_samples
from vkmnn.quantization.targets import Target, read_targets

pytest.importorskip("onnxruntime")
__all__ = ["cli"]  # the fixture
Array = np.ndarray[Any, Any]
FLOAT = TensorProto.FLOAT


def model_of(
    path: Path, nodes: list[onnx.NodeProto], constants: dict[str, Array], shape: list[Any]
) -> Path:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", FLOAT, shape)],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def node(op: str, inputs: str, output: str, **more: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **more)


def weight(rng: np.random.Generator, *shape: int) -> Array:
    return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


@pytest.fixture(scope="module")
def glyphs() -> tuple[Array, Array]:
    """Noisy pictures [400, 1, 8, 8] of ten shapes, and their classes."""
    rng = np.random.default_rng(5)
    shapes = rng.random((10, 1, 8, 8)) > 0.5
    labels = rng.integers(0, 10, 400)
    x = 0.6 * shapes[labels] + 0.35 * rng.standard_normal((400, 1, 8, 8))
    return np.clip(x, 0, 1).astype(np.float32), labels


def trained(path: Path, glyphs: tuple[Array, Array], *, uneven: bool) -> Path:
    """Save a network of random convolutions whose last layer was fitted to the glyphs.

    Args:
        path: the file.
        glyphs: pictures and classes.
        uneven: the ranges of depthwise channels differ by orders of magnitude.
    """
    rng = np.random.default_rng(2)
    spread = np.exp(rng.uniform(-3, 3, 24)).astype(np.float32) if uneven else np.ones(24, "f")
    constants = {
        "w1": weight(rng, 24, 1, 3, 3) * spread[:, None, None, None],
        "w2": weight(rng, 24, 1, 3, 3),
        "w3": weight(rng, 32, 24, 1, 1),
    }
    nodes = [
        node("Conv", "x w1", "c1", pads=[1] * 4),
        node("Relu", "c1", "r1"),
        node("Conv", "r1 w2", "c2", pads=[1] * 4, group=24),
        node("Relu", "c2", "r2"),
        node("Conv", "r2 w3", "c3", strides=[2, 2]),
        node("Relu", "c3", "r3"),
        node("Flatten", "r3", "f"),
    ]
    x, labels = glyphs
    features = model_of(path, [*nodes, node("Identity", "f", "y")], constants, ["N", 1, 8, 8])
    rows = open_oracle(features).run(None, {"x": x})[0][:200].astype(np.float64)
    scale = rows.std(0) + 1e-2
    rows /= scale
    wanted = np.eye(10)[labels[:200]] - 0.1
    solved = np.linalg.solve(rows.T @ rows + 10 * np.eye(rows.shape[1]), rows.T @ wanted)
    constants["wh"] = (solved / scale[:, None]).astype(np.float32)
    return model_of(path, [*nodes, node("Gemm", "f wh", "y")], constants, ["N", 1, 8, 8])


@pytest.fixture(scope="module")
def uneven(glyphs: tuple[Array, Array], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("net") / "uneven.onnx", glyphs, uneven=True)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A folder with pictures of two classes, and a list that is no sample."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name in ("cat", "dog"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(5):
            pixels = rng.integers(0, 256, (40 + number, 50, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    (tmp_path / "pictures" / "README.txt").write_text("photographs")
    return tmp_path / "pictures"


def reading(model: Path, said: list[str], **more: Any) -> Reading:
    from vkmnn.quantization.model import inputs_of, load

    options = {"most": 200, "task": None, "options": {}, "device": "cpu", **more}
    return Reading(model=model, inputs=inputs_of(load(model)), tell=said.append, **options)


# --- samples --------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [("N", 3, 32, 32), (4, 3, 24, 24), ("N", 20, 20, 3)])
def test_pictures_are_prepared_as_by_the_pipeline(
    tmp_path: Path, pictures: Path, shape: tuple[Any, ...]
) -> None:
    model = classifier(tmp_path / "c.onnx", shape, classes=10)
    files = sorted(pictures.rglob("*.png"))
    said: list[str] = []
    with open_samples(pictures, reading(model, said)) as samples:
        read = [dict(one) for one in samples]
        labels = samples.labels
    with pipeline(None, model, device="cpu", preprocess="host", tell=lambda _: None) as pipe:
        assert isinstance(pipe, PicturePipeline)
        fed: list[Any] = []
        run = pipe.network.submit
        pipe.network.submit = lambda feeds: (fed.append(feeds), run(feeds))[1]  # type: ignore[method-assign]
        pipe(files)
    size = shape[0] if isinstance(shape[0], int) else 1
    assert len(read) == -(-len(files) // size)
    if size == 1:
        assert len(fed) == len(read)
        for ours, its in zip(read, fed, strict=True):
            np.testing.assert_array_equal(ours["x"], its["x"])
    assert labels is not None
    assert [one for group in labels for one in group][: len(files)] == [0] * 5 + [1] * 5
    text = "\n".join(said)
    assert "no file describes the preprocessing" in text
    assert "--mean" in text
    assert "the task is image-classification" in text
    assert "cat 0, dog 1" in text
    assert "1 file of other kinds" in text


def test_options_of_preprocessing_reach_the_pipeline(tmp_path: Path, pictures: Path) -> None:
    model = classifier(tmp_path / "c.onnx", classes=2)
    said: list[str] = []
    how = reading(model, said, options={"mean": (0.0,), "std": (1.0,), "labels": ["dog", "cat"]})
    with open_samples(str(pictures / "*" / "1.png"), how) as samples:
        assert len(samples) == 2
        assert samples[0]["x"].min() >= 0
        assert samples.labels is None  # of a pattern, folders are no classes
    with open_samples(pictures, how) as samples:
        assert [one[0] for one in samples.labels or ()] == [1] * 5 + [0] * 5


def test_networks_that_run_in_tiles_get_one(tmp_path: Path, pictures: Path) -> None:
    constants = {"w": weight(np.random.default_rng(0), 3, 3, 3, 3)}
    model = model_of(
        tmp_path / "up.onnx", [node("Conv", "x w", "y", pads=[1] * 4)], constants,
        ["N", 3, "H", "W"],
    )  # fmt: skip
    how = reading(model, [], task="upscale", options={"tile": 16})
    with open_samples(pictures, how) as samples:
        assert samples[0]["x"].shape == (1, 3, 16, 16)
        assert np.ptp(samples[0]["x"]) > 0.5


def test_the_number_of_samples_and_their_memory_are_bounded(
    tmp_path: Path, pictures: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    assert len(list_entries(pictures, 4, said.append)) == 4
    assert "4 of 10 samples are used" in said[-1]
    assert [one.label for one in list_entries(pictures, 4, said.append)] == [
        *("cat", "cat", "dog", "dog")
    ]
    read: list[int] = []

    def make(index: int) -> dict[str, Array]:
        read.append(index)
        return {"x": np.full(100, index, np.float32)}

    monkeypatch.setattr("vkmnn.quantization.sample_list._KEPT_BYTES", 1000)
    samples = Samples(10, make)
    for _ in range(2):
        assert [int(one["x"][0]) for one in samples] == list(range(10))
    assert read == [*range(10), *range(10)]  # two of them fit
    assert samples[9] is samples[9]
    assert [int(one["x"][0]) for one in samples.spread(3)] == [0, 4, 8]


def test_texts_and_lines(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("first\n\nsecond\n")
    rows: list[Any] = ["a text", {"text": "another", "label": "good"}, {"sentence": "third"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    said: list[str] = []
    assert [one.value for one in list_entries(tmp_path / "one.txt", 9, said.append)] == [
        *("first", "second")
    ]
    found = list_entries(tmp_path / "rows.jsonl", 9, said.append)
    assert [(one.value, one.label) for one in found] == [
        ("a text", None), ("another", "good"), ("third", None),
    ]  # fmt: skip
    (tmp_path / "two.txt").write_text("whole\nfile")
    both = list_entries(str(tmp_path / "*.txt"), 9, said.append)
    assert [one.value for one in both] == ["first\n\nsecond\n", "whole\nfile"]
    (tmp_path / "bad.jsonl").write_text('{"text": "fine"}\n[1')
    (tmp_path / "mixed.jsonl").write_text('{"text": "fine"}\n{"image": "a.png"}')
    (tmp_path / "empty").mkdir()
    for name, message in (
        ("bad.jsonl", "cannot be read"), ("mixed.jsonl", "mixes"), ("empty", "holds no samples"),
        ("nowhere", "no such file or folder"),
    ):  # fmt: skip
        with pytest.raises(InvalidInputError, match=message):
            list_entries(tmp_path / name, 9, said.append)


def test_texts_are_tokenised_as_by_the_pipeline(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    from tests.pipelines.test_texts import encoder

    encoder(tmp_path, "logits")
    (tmp_path / "texts").mkdir()
    lines = ["the quick brown fox", "naïve café", "a lazy dog"]
    (tmp_path / "texts" / "lines.txt").write_text("\n".join(lines), "utf-8")
    model = next(tmp_path.glob("*.onnx"))
    made = vkmnn.quantize(
        model, tmp_path / "q.onnx", calibration=tmp_path / "texts", device="cpu", block=16
    )
    assert (made.samples, made.made_up) == (3, False)
    assert made.quantized


def test_arrays_in_several_files_and_rows(tmp_path: Path, uneven: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "data").mkdir()
    for number in range(3):
        x = rng.random((2, 1, 8, 8)).astype(np.float32)
        np.savez(tmp_path / "data" / f"{number}.npz", x=x, labels=np.array([1, 2]))
    said: list[str] = []
    with open_samples(tmp_path / "data", reading(uneven, said)) as samples:
        assert len(samples) == 6
        assert samples.labels == [[1], [2]] * 3
    with open_samples(tmp_path / "data", reading(uneven, said, most=2)) as samples:
        assert len(samples) == 2
    row = {"x": rng.random((1, 1, 8, 8)).tolist()}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    with open_samples(tmp_path / "rows.jsonl", reading(uneven, said)) as samples:
        assert samples[0]["x"].dtype == np.float32
    with pytest.raises(InvalidInputError, match="'labels' is float"):
        vkmnn.quantize(
            uneven, tmp_path / "q.onnx", device="cpu",
            calibration={"x": np.zeros((2, 1, 8, 8), np.float32), "labels": np.zeros(2)},
        )  # fmt: skip
    assert as_arrays({"x": [1, 2]}, reading(uneven, said).inputs)["x"].dtype == np.float32


def test_samples_of_the_wrong_kind(tmp_path: Path, uneven: Path, pictures: Path) -> None:
    (tmp_path / "words.txt").write_text("some words")
    with pytest.raises(InvalidInputError, match="calibration data holds texts"):
        vkmnn.quantize(
            classifier(tmp_path / "c.onnx"), tmp_path / "q.onnx", device="cpu",
            calibration=tmp_path / "words.txt",
        )  # fmt: skip
    with pytest.raises(InvalidInputError, match="samples"):
        vkmnn.quantize(uneven, tmp_path / "q.onnx", calibration=pictures, samples=0, device="cpu")
    assert not (tmp_path / "q.onnx").exists()


# --- accuracy -------------------------------------------------------------------------------------


def share(path: Path, float_path: Path, glyphs: tuple[Array, Array]) -> tuple[float, float]:
    """Return the share of correct glyphs that no quantisation has seen, and the relative error."""
    x, labels = glyphs[0][300:], glyphs[1][300:]
    want, have = (open_oracle(one).run(None, {"x": x})[0] for one in (float_path, path))
    error = np.sqrt(np.square(want - have).sum() / np.square(want).sum())
    return float(np.mean(have.argmax(1) == labels)), float(error)


@pytest.mark.parametrize("is_uneven", [False, True])
def test_at_least_as_accurate_as_onnxruntimes_tools(
    tmp_path: Path, glyphs: tuple[Array, Array], is_uneven: bool
) -> None:
    from onnxruntime import quantization as tools

    class Reader(tools.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._rows = iter(glyphs[0][200:300])

        def get_next(self) -> dict[str, Array] | None:
            row = next(self._rows, None)
            return None if row is None else {"x": row[None]}

    model = trained(tmp_path / "net.onnx", glyphs, uneven=is_uneven)
    tools.quantize_static(
        str(model), str(tmp_path / "its.onnx"), Reader(), per_channel=True,
        activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
    )  # fmt: skip
    made = vkmnn.quantize(
        model, tmp_path / "ours.onnx", activations="uint8", device="cpu",
        calibration={"x": glyphs[0][200:300], "labels": glyphs[1][200:300]},
    )  # fmt: skip
    (plain, _), (its, its_error), (ours, error) = (
        share(path, model, glyphs) for path in (model, tmp_path / "its.onnx", made.path)
    )
    assert plain > 0.9
    assert ours >= its - 0.01  # one glyph of a hundred
    assert ours > plain - 0.02
    assert error < its_error * (0.6 if is_uneven else 1.02)
    assert made.correct is not None
    assert made.correct[0] > made.correct[1] - 0.05


def test_a_target_leaves_the_most_sensitive_nodes(
    tmp_path: Path, glyphs: tuple[Array, Array], uneven: Path
) -> None:
    data = {"x": glyphs[0][200:300], "labels": glyphs[1][200:300]}
    how: dict[str, Any] = {"activations": "uint8", "calibration": data, "device": "cpu"}
    full = vkmnn.quantize(uneven, tmp_path / "full.onnx", sensitivity=True, **how)
    rms = max(one.rms or 0 for one in full.accuracy)
    errors = [one.rms for one in full.sensitivity]
    assert errors == sorted(errors, key=lambda one: -(one or 0))
    assert {one.name for one in full.sensitivity} == {
        *("Conv_c1", "Conv_c2", "Conv_c3", "Gemm_y"),
    }
    target = f"rms<={rms / 2:.6f}"
    made = vkmnn.quantize(
        uneven, tmp_path / "made.onnx", target=[target, "top1>=95%"],
        profile="geforce-rtx-3060-laptop", **how,
    )  # fmt: skip
    reached = made.reached
    assert reached is not None
    assert (reached.held_out, made.samples) == (50, 50)
    assert reached.left
    assert reached.full["rms"] > rms / 2 >= next(iter(reached.targets.values()))
    assert list(reached.targets)[1] == "top1>=95%"
    left = {one.name for one in reached.left}
    assert left < {one.name for one in full.sensitivity}
    assert left <= {one.name for one in made.in_float}
    assert made.quantized
    size = sum(one.nbytes for one in made.after.values())
    assert reached.full_bytes < size < sum(one.nbytes for one in made.before.values())
    assert set(reached.predicted_us) == {"float", "full", "chosen"}
    x = glyphs[0][201:300:2]
    a, b = (open_oracle(path).run(None, {"x": x})[0] for path in (uneven, made.path))
    assert np.sqrt(np.square(a - b).sum() / np.square(a).sum()) < rms / 2 * 1.01


def test_a_target_out_of_reach(tmp_path: Path, glyphs: tuple[Array, Array], uneven: Path) -> None:
    data = {"x": glyphs[0][:8]}
    with pytest.raises(TargetMissedError, match=r"no model .* meets cosine>=1 .*the best") as info:
        vkmnn.quantize(
            uneven, tmp_path / "q.onnx", activations="uint8", calibration=data, device="cpu",
            target="cosine>=1",
        )  # fmt: skip
    assert 0.9 < info.value.best["cosine"] < 1
    assert not (tmp_path / "q.onnx").exists()
    for target, more, message in (
        ("top1>=99%", {}, "needs calibration data"),
        ("top1>=99%", {"calibration": {"x": glyphs[0][:1]}}, "at least two samples"),
        ("accuracy>=99%", {"calibration": data}, "have no labels"),
    ):
        with pytest.raises(InvalidInputError, match=message):
            vkmnn.quantize(uneven, tmp_path / "q.onnx", target=target, device="cpu", **more)
    assert not (tmp_path / "q.onnx").exists()


@pytest.mark.parametrize(
    ("text", "name", "bound"),
    [
        ("top1>=99%", "top1", 0.99),
        (" top1 >= 0.99 ", "top1", 0.99),
        ("PSNR>=40dB", "psnr", 40),
        ("rms<=1%", "rms", 0.01),
        ("cosine≥0.999", "cosine", 0.999),
        ("drop<=0.5%", "drop", 0.005),
    ],
)
def test_targets_are_read(text: str, name: str, bound: float) -> None:
    (found,) = read_targets(text)
    assert (found.name, found.bound) == (name, pytest.approx(bound))
    assert read_targets(str(found)) == (found,)
    assert len(read_targets([text, f"{text},{text}"])) == 3
    assert Target("top1", 0.5).is_met(0.5)
    assert not Target("rms", 0.5).is_met(0.6)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("top1", "is no target"),
        ("top5>=9%", "there is no measure 'top5'"),
        ("top1<=99%", r"rises as the model becomes more accurate\n.*top1>=99%"),
        ("top1>=99", r"top1 is at most 1\n.*99%"),
        ("rms>=1%", "falls"),
        ("top1>=1e%", "is no number"),
    ],
)
def test_bad_targets(text: str, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        read_targets(text)


def test_time_for_sensitivity_is_bounded(
    tmp_path: Path, glyphs: tuple[Array, Array], uneven: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "vkmnn.quantization.sensitivity.time.monotonic", iter(range(10**6)).__next__
    )
    monkeypatch.setattr("vkmnn.quantization.sensitivity.SECONDS", 1)
    made = vkmnn.quantize(
        uneven, tmp_path / "q.onnx", calibration={"x": glyphs[0][:4]}, sensitivity=True,
        device="cpu", activations="uint8",
    )  # fmt: skip
    measured = [one.rms is not None for one in made.sensitivity]
    assert measured == sorted(measured, reverse=True)
    assert not all(measured)
    assert any(measured)


def test_equal_ranges_keep_the_function(
    tmp_path: Path, glyphs: tuple[Array, Array], uneven: Path
) -> None:
    from vkmnn.quantization import tools
    from vkmnn.quantization.equalise import equalised

    proto, x = onnx.load(uneven), glyphs[0][:5]
    made = equalised(proto, [{"x": x}], tools.opened)
    assert made is not None
    onnx.save(made, tmp_path / "equal.onnx")
    before, after = (
        open_oracle(path).run(None, {"x": x})[0] for path in (uneven, tmp_path / "equal.onnx")
    )
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * np.ptp(before))
    changed = {
        a.name for a, b in zip(proto.graph.initializer, made.graph.initializer, strict=True)
        if a.raw_data != b.raw_data
    }  # fmt: skip
    assert changed == {"w1", "w2", "w3", "wh"}


def test_equal_ranges_leave_other_channels(tmp_path: Path) -> None:
    """Rows of a sequence, columns under a convolution, and results that others read."""
    from vkmnn.quantization import tools
    from vkmnn.quantization.equalise import equalised

    rng = np.random.default_rng(0)
    constants = {
        "w": weight(rng, 4, 4, 1), "v": weight(rng, 6, 6), "b": weight(rng, 6, 1)[:, 0],
        "u": weight(rng, 6, 6), "t": weight(rng, 6, 6),
    }  # fmt: skip
    nodes = [
        node("Conv", "x w", "c"),
        node("Relu", "c", "r"),
        node("MatMul", "r v", "m"),  # its channels are the columns
        node("Add", "m b", "a"),
        node("Relu", "a", "s"),
        node("MatMul", "s u", "n"),
        node("MatMul", "n t", "o"),  # "n" is an output, too
        node("Add", "o n", "y"),
    ]
    model = model_of(tmp_path / "m.onnx", nodes, constants, [2, 4, 6])
    proto, x = onnx.load(model), rng.standard_normal((2, 4, 6)).astype(np.float32)
    made = equalised(proto, [{"x": x}], tools.opened)
    assert made is not None
    onnx.save(made, tmp_path / "equal.onnx")
    before, after = (open_oracle(path).run(None, {"x": x})[0]
                     for path in (model, tmp_path / "equal.onnx"))  # fmt: skip
    np.testing.assert_allclose(after, before, rtol=0, atol=1e-5 * np.ptp(before))
    changed = {
        a.name for a, b in zip(proto.graph.initializer, made.graph.initializer, strict=True)
        if a.raw_data != b.raw_data
    }  # fmt: skip
    assert changed == {"v", "b", "u"}


@pytest.mark.parametrize("symmetric", [True, False])
def test_scales_have_a_smaller_error_than_onnxruntimes(symmetric: bool) -> None:
    from vkmnn.quantization.tools import pack as its

    rng = np.random.default_rng(0)
    matrix = (rng.standard_normal((96, 40)) ** 3).astype(np.float32)
    importance = np.exp(rng.standard_normal(96)).astype(np.float32)

    def error(made: tuple[Array, Array, Array], by: Array) -> float:
        codes, scales, zeros = made
        values = np.stack([codes & 15, codes >> 4], -1).reshape(40, 3, 32).astype(np.float32)
        zero = np.stack([zeros & 15, zeros >> 4], -1).reshape(40, -1)[:, :3].astype(np.float32)
        middle = np.full_like(zero, 8) if symmetric else zero
        back = (values - middle[..., None]) * scales[..., None]
        return float((np.square(back.reshape(40, 96).T - matrix) * by[:, None]).sum())

    even = np.ones(96, np.float32)
    ours, weighted = pack(matrix, 4, 32, symmetric), pack(matrix, 4, 32, symmetric, importance)
    assert error(ours, even) < 0.97 * error(its(matrix, 4, 32, symmetric), even)
    assert error(weighted, importance) < error(ours, importance)
    assert error(weighted, even) > error(ours, even)


# --- the command ----------------------------------------------------------------------------------


def test_the_command_says_what_was_left(
    cli: Cli, tmp_path: Path, glyphs: tuple[Array, Array], uneven: Path
) -> None:
    np.savez(tmp_path / "data.npz", x=glyphs[0][200:240], labels=glyphs[1][200:240])
    page = tmp_path / "page.html"
    result = cli(
        "quantize", uneven, "-o", tmp_path / "q.onnx", "--calibrate", tmp_path / "data.npz",
        "-a", "uint8", "--target", "rms<=3%", "--sensitivity", "--html", page, "-d", "cpu",
    )  # fmt: skip
    assert result.status == 0, result.err
    assert "Sensitivity: the error" in result.out
    assert "Target on 20 samples held out" in result.out
    assert "stay in float: " in result.out
    assert "predicted time of a run" in result.out
    assert "correct by the labels" in result.out
    text = page.read_text("utf-8")
    for words in ("<h2>Sensitivity</h2>", "<h2>Target</h2>", "Gemm_y", "stay in float",
                  "<h2>Weights</h2>", "<h2>Difference from the float model on 20 held-out samples",
                  "<td>y</td>", "written to q.onnx"):  # fmt: skip
        assert words in text, words
    for cell in re.findall(r'<td class="n"[^>]*>[^<]*', text):  # columns of numbers are sorted so
        assert "data-value" in cell or cell.rpartition(">")[2].isdigit(), cell
    again = cli(
        "quantize", uneven, tmp_path / "q.onnx", "--calibrate", tmp_path / "data.npz", "--bits", 8,
        "--target", "rms<=0.0001%", "-d", "cpu", "--json",
    )  # fmt: skip
    assert again.status == 1
    assert "the best has rms" in again.err
    for arguments, words in (
        (["--bits", 3], "--bits cannot be 3"),
        (["--bits", 4, "-w", "int8"], "--bits 4 contradicts --weights int8"),
        (["-o", tmp_path / "r.onnx"], "two outputs are named"),
    ):
        wrong = cli("quantize", uneven, tmp_path / "q.onnx", *arguments, "-d", "cpu")
        assert (wrong.status, words in wrong.err) == (1, True), wrong.err
    assert "no output is named" in cli("quantize", uneven).err


@pytest.mark.parametrize(
    ("name", "words"),
    [("cnn_uint8", "already quantised"), ("cnn_dynamic", "already quantised"),
     ("cnn_float", "quantize reads ONNX")],
)  # fmt: skip
def test_models_of_other_formats(cli: Cli, tmp_path: Path, name: str, words: str) -> None:
    data = Path(__file__).parents[1] / "data" / "tflite" / f"{name}.tflite"
    result = cli("quantize", data, "-o", tmp_path / "q.onnx")
    assert (result.status, words in result.err.replace("\n", " ")) == (1, True), result.err
    assert "TFLite" in result.err


def test_models_that_are_quantised_in_part(
    tmp_path: Path, glyphs: tuple[Array, Array], uneven: Path
) -> None:
    half = vkmnn.quantize(
        uneven, tmp_path / "half.onnx", exclude=["Conv_c3"], device="cpu", compare=False
    )
    with pytest.raises(InvalidInputError, match="already quantised in part"):
        vkmnn.quantize(
            half.path, tmp_path / "q.onnx", activations="uint8", calibration={"x": glyphs[0][:4]}
        )
    rest = vkmnn.quantize(half.path, tmp_path / "q.onnx", device="cpu", compare=False)
    assert rest.quantized == ("Conv_c3",)


def test_advice(tmp_path: Path, glyphs: tuple[Array, Array]) -> None:
    rng = np.random.default_rng(0)
    nodes = [node("MatMul", "x w", "y")]
    small = model_of(tmp_path / "m.onnx", nodes, {"w": weight(rng, 64, 10)}, ["N", 64])
    made = vkmnn.quantize(small, tmp_path / "q.onnx", device="cpu", weights="int8")
    assert "saves neither memory nor time" in made.advice
    from vkmnn.quantization.advice import advice_for
    from vkmnn.quantization.report import Measured, OutputAccuracy, Size
    from vkmnn.quantization.scheme import Scheme

    lost = Measured((OutputAccuracy("y", 1.0, 0.5, 0.4, 0.8, 9.0, 0.6),))
    sizes = {"float32": Size(1 << 20, 4 << 20)}, {"int8": Size(1 << 20, 1 << 20)}
    deep = onnx.load(trained(tmp_path / "d.onnx", glyphs, uneven=True))
    static = advice_for(deep, Scheme(activations="uint8"), *sizes, lost, False)
    assert "1 of 3 convolutions are depthwise" in static
    assert "leave out --activations" in static
    narrow = advice_for(onnx.load(small), Scheme("int4"), *sizes, lost, False)
    assert "4 bits are too few" in narrow
    assert advice_for(deep, Scheme(), *sizes, lost, True) == ""  # random inputs say little
    little = advice_for(deep, Scheme(), sizes[0], sizes[0], Measured(()), True)
    assert "most of them cannot be packed" in little


@pytest.mark.parametrize(
    ("features", "activations", "device", "said"),
    [
        ((), "uint8", "auto", True),
        (("integer_dot_accelerated",), "uint8", "auto", False),
        ((), None, "auto", False),
        ((), "uint8", "cpu", False),
    ],
)
def test_advice_on_devices_without_integer_dots(
    features: tuple[str, ...],
    activations: str | None,
    device: str,
    said: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vkmnn.quantization.advice import advice_for_device

    info = replace(LARGE_GPU, features=frozenset(features))
    monkeypatch.setattr("vkmnn.quantization.advice.enumerate_devices", lambda: [info])
    advice = advice_for_device(activations, device)
    assert ("large GPU has no instructions for integer dot products" in advice) is said
