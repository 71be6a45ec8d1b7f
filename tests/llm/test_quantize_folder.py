"""`vkmnn quantize` on language models: folders and files, chosen by perplexity."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.cli.conftest import Cli
from tests.cli.conftest import cli as cli
from tests.llm import described, tiny
from tests.llm.test_described import _spoken
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.ir import DType, TensorInfo
from vkmnn.llm.layout import read_layout
from vkmnn.llm.networks import plain_graph
from vkmnn.quantization.blocks import pack
from vkmnn.quantization.language import is_language_model
from vkmnn.quantization.language.feedback import pack_with_feedback
from vkmnn.quantization.language.statistics import Moments, products_of
from vkmnn.quantization.language.texts import feeds_of, read_windows

pytest.importorskip("tokenizers")
Array = np.ndarray[Any, Any]
LETTERS = "\n .,abcdefghijklmnopqrstuvwxyz"


def sentences(count: int, seed: int = 0) -> str:
    """Return text of a small language."""
    rng = np.random.default_rng(seed)
    parts = [["the", "a", "one", "this"], ["quick", "lazy", "old", "tiny"],
             ["fox", "dog", "cat", "bird"], ["sees", "hears", "likes"],
             ["the", "a"], ["house.", "tree.", "river.", "road."]]  # fmt: skip
    return "\n".join(" ".join(str(rng.choice(one)) for one in parts) for _ in range(count))


def write_letters(folder: Path) -> None:
    """Write a tokenizer with a token for each letter."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    vocabulary = {letter: number for number, letter in enumerate(LETTERS)}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=" "))
    made.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    made.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": tiny.TEMPLATE}))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of safetensors: random layers, and a last matrix that was fitted to a text."""
    folder = described.write_folder(tmp_path_factory.mktemp("lm") / "letters", "llama")
    write_letters(folder)
    weights = described.weights_of("llama")
    layout = read_layout(folder)
    assert layout.described is not None
    graph = plain_graph(layout.described.network())
    last = next(one for one in products_of(graph) if one.weight == "output.weight")
    shown = replace(graph, outputs=[TensorInfo(last.input, DType.FLOAT32, None)])
    tokens = np.array([LETTERS.index(letter) for letter in sentences(60)])
    feeds = feeds_of(layout)
    rows, after = [], []
    with vkmnn.InferenceSession(shown, "cpu") as session:
        for start in range(0, len(tokens) - 256, 255):
            window = tokens[start : start + 256]
            rows.append(session.run(None, feeds(session, window.tolist()))[0][0, :-1])
            after.append(window[1:])
    x, y = np.concatenate(rows), np.concatenate(after)
    matrix = np.zeros((x.shape[1], described.VOCABULARY), np.float32)
    wanted = np.eye(described.VOCABULARY, dtype=np.float32)[y]
    first, second = np.zeros_like(matrix), np.zeros_like(matrix)
    for step in range(1, 81):  # Adam
        scores = x @ matrix
        odds = np.exp(scores - scores.max(1, keepdims=True))
        slope = x.T @ (odds / odds.sum(1, keepdims=True) - wanted) / len(x) + 1e-3 * matrix
        first += 0.1 * (slope - first)
        second += 0.01 * (slope**2 - second)
        rate = 0.2 / (1 - 0.9**step)
        matrix -= rate * first / (np.sqrt(second / (1 - 0.99**step)) + 1e-8)
    weights["lm_head.weight"] = np.ascontiguousarray(matrix.T)
    described.write_safetensors(folder / "model.safetensors", weights)
    (folder.parent / "text.txt").write_text(sentences(100, seed=1))
    return folder


def perplexity_of(path: Path, text: str) -> float:
    """Return the perplexity of a text by onnxruntime."""
    from tests.onnxruntime_oracle import open_oracle

    ids = np.array([[LETTERS.index(letter) for letter in text]])
    session = open_oracle(path)
    feeds: dict[str, Array] = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for one in session.get_inputs():
        if one.name.startswith("past"):
            feeds[one.name] = np.zeros((1, one.shape[1], 0, one.shape[3]), np.float32)
    scores = session.run(["logits"], feeds)[0][0, :-1].astype(np.float64)
    scores -= np.log(np.exp(scores).sum(1, keepdims=True))
    return float(np.exp(-scores[np.arange(len(scores)), ids[0, 1:]].mean()))


def test_the_best_method_is_written(cli: Cli, trained: Path, tmp_path: Path) -> None:
    out = tmp_path / "small"
    result = cli(
        "quantize", trained, "-o", out, "--bits", 4, "-b", 16, "--html", tmp_path / "page.html",
        "--calibrate", trained.parent / "text.txt", "--json",
    )  # fmt: skip
    assert result.status == 0, result.err
    facts = json.loads(result.out)
    found = facts["perplexity"]
    assert set(found) == {
        *("float", "int4", "int4, weighted by the inputs", "int4, with error feedback"),
    }
    chosen = list(found)[-1]
    assert found[chosen] == min(value for name, value in found.items() if name != "float")
    assert len(set(found.values())) == 4
    assert found["float"] < 9  # of 30 letters
    assert found[chosen] < 1.2 * found["float"]
    assert sorted(one.name for one in out.iterdir()) == [
        *("config.json", "model.onnx", "model.onnx.data", "tokenizer.json"),
        "tokenizer_config.json",
    ]
    before, after = (sum(facts[f"weights_{side}"].values()) for side in ("before", "after"))
    assert after < 0.35 * before
    # Text that nobody has seen, by onnxruntime.
    text = sentences(12, seed=2)
    plain = vkmnn.quantize(trained, tmp_path / "plain", weights="int4", block=16, device="cpu")
    assert plain.perplexities == ()
    values = [perplexity_of(one / "model.onnx", text) for one in (out, plain.path)]
    assert values[0] <= values[1] * 1.01
    assert "<h2>Perplexity</h2>" in (tmp_path / "page.html").read_text("utf-8")
    answer = cli("generate", out, "-m", 12, "-d", "cpu", "--prompt", "the quick ")
    assert answer.status == 0, answer.err
    with vkmnn.llm.load(out, "cpu") as model:
        assert model.has_tokenizer
        assert model.tokenizer.has_template
        said = model.generate("the quick ", 12).text
    assert said in answer.out
    assert set(said) <= set(LETTERS)


SOURCES: dict[str, Callable[[Path], Path]] = {
    "genai": tiny.genai_folder,
    "optimum": tiny.optimum_folder,
    "merged": lambda path: tiny.optimum_folder(
        path, make=tiny.merged_model, name="onnx/decoder_model_merged.onnx"
    ),
    "tied": lambda path: described.write_folder(path, "tied", "BF16", 2),
    "gguf": lambda path: _spoken(path.with_suffix(".gguf"), "F16"),
}


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("source", SOURCES)
def test_all_layouts(source: str, bits: int, tmp_path: Path) -> None:
    model = SOURCES[source](tmp_path / "model")
    assert is_language_model(model)
    made = vkmnn.quantize(
        model, tmp_path / "out", weights=f"int{bits}", block=16, device="cpu"  # type: ignore[arg-type]
    )  # fmt: skip
    assert {path.suffix for path in made.files} <= {".json", ".onnx", ".data"}
    assert all("MatMul" in name or "/" in name or "Gather" in name for name in made.quantized)
    assert f"{bits}-bit codes" in made.after
    prompt = [1, 2, 3, 4]
    with vkmnn.llm.load(model, "cpu") as before, vkmnn.llm.load(made.path, "cpu") as after:
        rows = [one._decoder.open.core and next(_logits(one, prompt)) for one in (before, after)]
        assert before.has_tokenizer == after.has_tokenizer
        if before.has_tokenizer:
            text = tiny.TEXT[2]
            assert after.tokenizer.encode(text) == before.tokenizer.encode(text)
            assert after.tokenizer.has_template == before.tokenizer.has_template
        assert after.layout.eos == before.layout.eos
        assert after.layout.context == before.layout.context
    error = np.abs(rows[0] - rows[1]).max() / np.ptp(rows[0])
    assert 0 < error < (0.02 if bits == 8 else 0.4)


def _logits(model: Any, tokens: list[int]) -> Any:
    with model.sequence(tokens) as sequence:
        yield np.array(sequence.extend(tokens))


def test_what_cannot_be_quantised(cli: Cli, trained: Path, tmp_path: Path) -> None:
    coded = described.write_file(tmp_path / "q4.gguf", "wide", "Q4_0")
    result = cli("quantize", coded, "-o", tmp_path / "out")
    assert result.status == 1
    assert "is already quantised (q4_0); nothing was written" in result.err
    once = vkmnn.quantize(trained, tmp_path / "once", weights="int4", device="cpu")
    cases: list[tuple[Path, str, dict[str, Any], str]] = [
        (once.path, "twice", {}, "already quantised"),
        (trained, "once", {}, "is not empty"),
        (trained, "m.onnx", {}, "becomes a folder"),
        (trained, "no/where", {}, "cannot be written"),
        (trained, "out", {"activations": "uint8"}, "activations is not for language models"),
        (trained, "out", {"target": "top1>=9%"}, "target is not for language models"),
        (trained, "out", {"calibration": {"x": np.zeros(1)}}, "is calibrated by text"),
        (trained, "out", {"weights": "int3"}, "weights cannot be"),
        (trained, "out", {"samples": 0}, "samples"),
    ]
    for model, target, more, words in cases:
        with pytest.raises(InvalidInputError, match=words):
            vkmnn.quantize(model, tmp_path / target, device="cpu", **more)
    (tmp_path / "short.txt").write_text("the fox")
    with pytest.raises(InvalidInputError, match="7 tokens, too few"):
        vkmnn.quantize(trained, tmp_path / "out", calibration=tmp_path / "short.txt")
    bare = described.write_folder(tmp_path / "bare", "llama")
    with pytest.raises(ModelFileError, match=r"has no tokenizer\.json"):
        vkmnn.quantize(bare, tmp_path / "out", calibration=tmp_path / "short.txt")
    tiny.write_tokenizer(bare)
    (tmp_path / "long.txt").write_text("\n".join(tiny.TEXT * 9), "utf-8")
    with pytest.raises(ModelFileError, match=r"a token \d+, and the network 96"):
        vkmnn.quantize(bare, tmp_path / "out", calibration=tmp_path / "long.txt", device="cpu")
    assert not (tmp_path / "out").exists()
    assert not [one for one in tmp_path.iterdir() if one.name.startswith(".")]


def test_windows_of_text(trained: Path, tmp_path: Path) -> None:
    said: list[str] = []
    layout = read_layout(trained)
    found = read_windows(trained.parent / "text.txt", layout, 6, said.append)
    assert len(found.calibration) + len(found.held_out) <= 6
    assert len(found.held_out) == 1
    assert not {tuple(one) for one in found.calibration} & {tuple(one) for one in found.held_out}
    assert all(len(one) == 256 for one in (*found.calibration, *found.held_out))
    assert "windows of 256 tokens are used" in said[-1]


def test_error_feedback_lowers_the_error_of_products() -> None:
    rng = np.random.default_rng(0)
    mixed = rng.standard_normal((96, 96)) * np.exp(rng.standard_normal(96))
    x = (rng.standard_normal((400, 96)) @ mixed).astype(np.float32)
    matrix = rng.standard_normal((96, 24)).astype(np.float32)
    moments = x.T.astype(np.float64) @ x / len(x)

    def error(made: tuple[Array, Array, Array], symmetric: bool) -> float:
        codes, scales, zeros = made
        values = np.stack([codes & 15, codes >> 4], -1).reshape(24, 3, 32).astype(np.float32)
        zero = np.stack([zeros & 15, zeros >> 4], -1).reshape(24, -1)[:, :3].astype(np.float32)
        back = (values - (8 if symmetric else zero[..., None])) * scales[..., None]
        return float(np.square(x @ (back.reshape(24, 96).T - matrix)).sum())

    for symmetric in (True, False):
        plain = error(pack(matrix, 4, 32, symmetric), symmetric)
        weights = np.diagonal(moments).astype(np.float32)
        weighted = error(pack(matrix, 4, 32, symmetric, weights), symmetric)
        fed_back = error(pack_with_feedback(matrix, 4, 32, symmetric, moments), symmetric)
        assert fed_back < 0.6 * plain
        assert weighted < plain
    dead = np.zeros((96, 96))  # inputs that are never anything but zero
    assert np.isfinite(pack_with_feedback(matrix, 4, 32, True, dead)[1]).all()


def test_moments_fit_into_memory_in_parts(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = read_layout(trained)
    assert layout.described is not None
    graph = plain_graph(layout.described.network())
    windows = [list(range(5, 25)), list(range(3, 23))]
    whole = Moments(graph, feeds_of(layout), windows, "cpu")
    monkeypatch.setattr("vkmnn.quantization.language.statistics._BYTES", 1)
    parts = Moments(graph, feeds_of(layout), windows, "cpu")
    for product in products_of(graph):
        assert product.weight in parts
        np.testing.assert_allclose(parts.of(product.weight), whole.of(product.weight), atol=1e-5)
        assert len(parts._held) == 1
    assert len(whole._held) == len({one.input for one in products_of(graph)})
