"""Language models whose files describe the network: GGUF, and safetensors with config.json."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import vkmnn
from tests.llm import described, tiny
from tests.llm.described import FILES, FOLDERS, PROMPT, TOKENS
from vkmnn.cli.app import app
from vkmnn.converter.language import read_source
from vkmnn.converter.language.blocks import GGUF_TYPES
from vkmnn.converter.language.rope import Rope
from vkmnn.converter.language.stored import StoredTensor
from vkmnn.converter.language.weights import Coded
from vkmnn.errors import ModelError, ModelFileError, UnsupportedOpError, VkmnnError
from vkmnn.ir.codes import decode
from vkmnn.llm.chunks import CHUNKS
from vkmnn.runtime.device import enumerate_devices

STORE = Path(__file__).parent / "data" / "described.npz"
CASES = [*(f"folder.{case}" for case in FOLDERS), *(f"file.{case}" for case in FILES)]
FLOATS = ("f32", "f16", "bf16")
EXACT = (*FLOATS, "q8_0", "q4_0", "q5_0", "iq4_nl", "mxfp4")
"""Types whose scales float16 holds; products of two such numbers are rounded."""


@pytest.fixture(scope="module")
def store() -> dict[str, Any]:
    """Return the results stored by `make_described.py`."""
    return dict(np.load(STORE))


def _written(case: str, store: dict[str, Any], folder: Path) -> Path:
    kind, _, name = case.partition(".")
    seed = int(store[f"{case}.seed"])
    if kind == "folder":
        return described.write_folder(folder / name, *FOLDERS[name], seed=seed)
    return described.write_file(folder / f"{name}.gguf", *FILES[name], seed=seed)


def _logits(path: Path, device: str = "auto") -> Any:
    """Return the logits of the prompt, twice the same."""
    session = vkmnn.InferenceSession(path, device)
    feeds: dict[str, Any] = {"input_ids": np.array([PROMPT])}
    feeds["attention_mask"] = np.ones((1, len(PROMPT)), np.int64)
    for info in session.get_inputs():
        if info.name.startswith("past"):
            feeds[info.name] = np.zeros((1, info.shape[1], 0, info.shape[3]), np.float32)
    first, second = (session.run(["logits"], feeds)[0][0] for _ in range(2))
    assert np.array_equal(first, second)
    return first


def _device(case: str) -> str:
    """Return where to run a case: numpy if a folder of the same network runs on a device."""
    kind, _, name = case.partition(".")
    return "cpu" if kind == "file" and FILES[name][0] in set(FOLDERS) - {"llama"} else "auto"


@pytest.mark.parametrize("case", CASES)
def test_logits_and_tokens(case: str, store: dict[str, Any], tmp_path: Path) -> None:
    path = _written(case, store, tmp_path)
    wanted, tokens = store[f"{case}.logits"], store[f"{case}.tokens"].tolist()
    exact = case.startswith("folder") or case.endswith(EXACT)
    device = _device(case)
    error = np.abs(_logits(path, device) - wanted).max() / np.ptp(wanted)
    assert error < (1e-5 if exact else 2e-3)
    with vkmnn.llm.load(path, device) as model:
        for _ in range(2):
            assert model.generate(PROMPT, TOKENS).tokens == tokens


def test_all_types_have_an_oracle() -> None:
    tried = {kind for _, kind in FILES.values()}
    assert {one.name for one in GGUF_TYPES.values()} == tried | {"F64"}


@pytest.mark.parametrize("kind", [one for one in described.TYPES if one not in ("F32", "F16")])
def test_blocks_are_decoded_as_by_the_package(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    number, count, width = described.TYPES[kind]
    rng = np.random.default_rng(3)
    data = rng.integers(0, 256, (16, 512 // count * width), dtype=np.uint8)
    with np.errstate(all="ignore"):
        wanted = gguf.quants.dequantize(data, gguf.GGMLQuantizationType(number))
        found = GGUF_TYPES[number].floats(data.reshape(16, -1, width)).reshape(16, 512)
    finite = np.isfinite(wanted) & (np.abs(wanted) < 1e6)
    # If the weights of a block hardly differ, their common part is kept.
    largest = np.abs(np.where(finite, wanted, 0)).reshape(16, -1, 16).max(-1).repeat(16, -1)
    assert (np.abs(found - wanted) <= 1.5e-3 * largest.reshape(16, -1) + 1e-6)[finite].all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "Q2_K", "Q5_1"])
def test_prompts_of_all_lengths(kind: str, store: dict[str, Any], tmp_path: Path) -> None:
    """Kernels for one row, for several, and for many: the same as in numpy."""
    name = "wide"
    path = described.write_file(tmp_path / "m.gguf", name, kind)
    sessions = [vkmnn.InferenceSession(path, device) for device in ("auto", "cpu")]
    for length in (1, 3, 7, 40):
        feeds: dict[str, Any] = {"input_ids": np.arange(length)[None] % 90}
        feeds["attention_mask"] = np.ones((1, length), np.int64)
        for info in sessions[0].get_inputs():
            if info.name.startswith("past"):
                feeds[info.name] = np.zeros((1, info.shape[1], 0, info.shape[3]), np.float32)
        found, wanted = (one.run(["logits"], feeds)[0] for one in sessions)
        assert np.abs(found - wanted).max() / np.ptp(wanted) < 2e-5


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("kind", "most"), [("Q4_0", 1.15), ("Q4_K", 1.15), ("Q8_0", 1.15),
                                            ("Q6_K", 1.4)])  # fmt: skip
def test_weights_take_no_more_than_their_file(
    kind: str, most: float, tied: bool, tmp_path: Path
) -> None:
    config = {**described.CONFIGS["wide"], "hidden_size": 512, "intermediate_size": 1024,
              "head_dim": 128, "max_position_embeddings": 64,
              "tie_word_embeddings": tied}  # fmt: skip
    path = _with_config(config, kind, tmp_path)
    with vkmnn.llm.load(path, capacity=16) as model:
        model.generate(PROMPT[:4], 2)
        assert model.memory()["weights"] / path.stat().st_size < most


def _with_config(config: dict[str, Any], kind: str, folder: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(described.CONFIGS, "made", config)
        return described.write_file(folder / "made.gguf", "made", kind)


def _commands(path: Path) -> float:
    """Return the commands of a token after warm-up."""
    with vkmnn.llm.load(path, capacity=100) as model:
        model.generate(PROMPT, 3)
        session = model.session()
        session.generate(PROMPT, 1)
        before = model.counters()
        session.generate([1], 6)
        after = model.counters()
    return (after["commands"] - before["commands"]) / (after["submits"] - before["submits"])


@pytest.mark.parametrize("name", ["wide", "wide_qwen2"])
@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q4_K", "Q8_0"])
def test_dispatches_of_a_layer(name: str, kind: str, tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    counts = []
    for layers in (1, 3):
        config = {**described.CONFIGS[name], "num_hidden_layers": layers}
        counts.append(_commands(_with_config(config, kind, tmp_path)))
    assert (counts[1] - counts[0]) / 2 <= 5


@pytest.mark.parametrize(
    ("name", "kind", "most"),
    [
        ("qwen3_full", "Q4_0", 5),
        ("qwen3_full", "F32", 5),
        ("gemma2_plain", "Q4_0", 7),
        ("gemma3", "Q4_0", 7),
    ],
)
def test_dispatches_of_a_layer_with_more_norms(
    name: str, kind: str, most: int, tmp_path: Path
) -> None:
    """Attention normalises queries and keys; residuals are part of norms after other parts."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    counts = []
    for layers in (2, 4):
        config = {**described.CONFIGS[name], "num_hidden_layers": layers}
        if "layer_types" in config:
            config["layer_types"] = ["sliding_attention", "full_attention"] * (layers // 2)
        counts.append(_commands(_with_config(config, kind, tmp_path)))
    assert (counts[1] - counts[0]) / 2 <= most


def test_dispatches_of_a_layer_of_experts(tmp_path: Path) -> None:
    """Beside attention: a norm, the router, its best and their shares, two products and a sum."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    counts = []
    for layers in (1, 3):
        config = {**described.CONFIGS["mixtral"], "num_hidden_layers": layers}
        counts.append(_commands(_with_config(config, "Q4_0", tmp_path)))
    assert (counts[1] - counts[0]) / 2 <= 11


def test_texts_of_a_mixture_share_their_steps(tmp_path: Path) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    path = described.write_folder(tmp_path / "mixtral", "mixtral")
    prompts = [PROMPT[place:] for place in range(3)]
    with vkmnn.llm.load(path, capacity=64) as model:
        alone = [model.generate(prompt, TOKENS).tokens for prompt in prompts]
        before = model.counters()["submits"]
        together = model.generate(prompts, TOKENS)
        assert model.counters()["submits"] - before < 2 * TOKENS
    assert [one.tokens for one in together] == alone


@pytest.mark.parametrize("name", ["wide", "mixtral", "phi3"])
def test_weights_are_read_in_any_order(name: str, tmp_path: Path) -> None:
    path = described.write_file(tmp_path / "m.gguf", name, "Q4_K" if name == "wide" else "Q4_1")
    weights = read_source(path).network().weights
    first = [bytes(weights[number]) for number in weights]
    order = np.random.default_rng(0).permutation(len(weights))
    assert all(bytes(weights[number]) == first[number] for number in (*order, 0, 0))


def test_a_file_that_becomes_shorter(tmp_path: Path) -> None:
    path = described.write_file(tmp_path / "m.gguf", "wide", "Q4_K")
    weights = read_source(path).network().weights
    path.write_bytes(path.read_bytes()[:-4096])
    with pytest.raises(ModelFileError, match="shorter"):
        list(weights.values())


def test_scales_that_float16_does_not_hold_are_float32(tmp_path: Path) -> None:
    """Products of a scale and a scale of scales, beyond the range or too near 0."""
    for factor in (1e6, 2e-4):
        blocks = described.random_blocks("Q4_K", (2, 256), factor, np.random.default_rng(1))
        path = tmp_path / "blocks"
        path.write_bytes(blocks.tobytes())
        version = path.stat().st_size, path.stat().st_mtime_ns
        tensor = StoredTensor(path, "w", GGUF_TYPES[12], (2, 256), 0, version)
        made = Coded([tensor], [None]).read()
        assert made["scales"].dtype == np.float32
        found = decode(made["codes"].reshape(2, 8, 16), made["scales"], made["zeros"], 4, 256)
        np.testing.assert_allclose(found, tensor.floats(), rtol=1e-3, atol=factor * 1e-3)


def test_long_texts_are_turned_by_other_frequencies(tmp_path: Path) -> None:
    """Up to the original context a sequence is rotated like a short one, whatever the capacity."""
    path = described.write_folder(tmp_path / "phi3", "phi3")
    tokens = []
    for capacity in (64, 300):
        with vkmnn.llm.load(path, capacity=capacity) as model:
            tokens.append(model.generate(PROMPT, TOKENS).tokens)
    assert tokens[0] == tokens[1]
    assert 300 + CHUNKS[-1] > 256 > 64 + CHUNKS[-1]


def test_forms_of_rotary_embeddings() -> None:
    plain = Rope(8, 10000.0).frequencies()
    assert np.allclose(Rope(8, 10000.0, "linear", 4.0).frequencies(), plain / 4)
    dynamic = Rope(8, 10000.0, "dynamic", 2.0, 64)
    assert np.allclose(dynamic.frequencies(), plain)
    stretched = (10000.0 * 3.0 ** (8 / 6)) ** (-np.arange(0, 8, 2) / 8)
    assert np.allclose(dynamic.frequencies(128), stretched)
    long = Rope(8, 10000.0, "longrope", 4.0, 64, short=(1.0, 1.0, 1.0, 1.0), long=(2.0,) * 4)
    assert np.allclose(long.frequencies(65), plain / 2)
    assert np.isclose(long.tables(2)[0][0, 0], np.sqrt(1 + np.log(4) / np.log(64)))


# --- converted, in folders, on the command line --------------------------------------------------


def test_conversion_to_own_files(store: dict[str, Any], tmp_path: Path) -> None:
    for case in ("folder.qwen2", "file.wide_q4_k", "file.llama_q8_0"):
        path = _written(case, store, tmp_path)
        made = tmp_path / f"{case}.vkmnn"
        result = CliRunner().invoke(app, ["convert", str(path), str(made)])
        assert result.exit_code == 0, result.output
        assert np.abs(_logits(made) - _logits(path)).max() < 1e-5


def test_variants_of_a_folder(tmp_path: Path) -> None:
    for kind in ("Q8_0", "Q4_0"):
        described.write_file(tmp_path / f"tiny-llama-{kind}.gguf", "llama", kind)
    described.write_file(tmp_path / "mmproj-tiny.gguf", "llama", "F32")
    layout = vkmnn.llm.layout.read_layout(tmp_path, "Q4_0")
    assert set(layout.variants) == {"Q8_0", "Q4_0"}
    assert layout.decoder.name == "tiny-llama-Q4_0.gguf"
    with pytest.raises(VkmnnError, match="Q5_K_M"):
        vkmnn.llm.layout.read_layout(tmp_path, "Q5_K_M")


def test_split_files(tmp_path: Path) -> None:
    keys = described.gguf_keys("llama")
    tensors = described.gguf_tensors("llama", "Q8_0")
    whole = described.write_gguf(tmp_path / "whole.gguf", keys, tensors)
    names = list(tensors)
    for number in range(3):
        mine = {name: tensors[name] for name in names[number::3]}
        about = {**(keys if number == 0 else {}), "split.no": number, "split.count": 3}
        described.write_gguf(tmp_path / f"m-{number + 1:05}-of-00003.gguf", about, mine)
    parts = tmp_path / "m-00001-of-00003.gguf"
    assert np.array_equal(_logits(parts), _logits(whole))
    (tmp_path / "m-00002-of-00003.gguf").unlink()
    with pytest.raises(VkmnnError, match="00002"):
        read_source(parts)


def test_commands(tmp_path: Path) -> None:
    path = _spoken(tmp_path / "m.gguf")
    run = CliRunner().invoke
    result = run(app, ["info", str(path)])
    assert result.exit_code == 0, result.output
    assert "llama" in result.output
    assert "Q8_0" in result.output
    result = run(app, ["generate", str(path), "hello", "--max-tokens", "3", "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["tokens"] == 3
    result = run(app, ["chat", str(path), "--max-tokens", "3"], input="hello\n\n")
    assert result.exit_code == 0, result.output
    with_server = pytest.importorskip("vkmnn.serve.models")
    models = with_server.load_models([str(path), f"other={path}"], "auto", capacity=32)
    assert list(models.language) == ["m", "other"]
    models.close()
    folder = described.write_folder(tmp_path / "folder", "llama")
    result = run(app, ["info", str(folder)])
    assert result.exit_code == 0, result.output
    assert "no tokenizer.json" in result.output


# --- vocabularies --------------------------------------------------------------------------------


def _trained() -> dict[str, Any]:
    """Return the vocabulary of `tiny`'s tokenizer."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        tiny.write_tokenizer(Path(folder))
        found: dict[str, Any] = json.loads((Path(folder) / "tokenizer.json").read_text("utf-8"))
    return found


def _spoken(path: Path, kind: str = "Q8_0") -> Path:
    """Write a file with a vocabulary of pairs and a template; its tokens are those of the model."""
    made = _trained()
    vocabulary = sorted(made["model"]["vocab"].items(), key=lambda item: item[1])
    special = {one["id"] for one in made["added_tokens"]}
    tokens = [text for text, _ in vocabulary]
    merges = [one if isinstance(one, str) else " ".join(one) for one in made["model"]["merges"]]
    config = {**described.CONFIGS["llama"], "vocab_size": len(tokens)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(described, "VOCABULARY", len(tokens))
        patch.setitem(described.CONFIGS, "spoken", config)
        return described.write_file(
            path, "spoken", kind,
            **{"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2",
               "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.merges": merges,
               "tokenizer.ggml.token_type": [3 if n in special else 1 for n in range(len(tokens))],
               "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.bos_token_id": 0,
               "tokenizer.chat_template": tiny.TEMPLATE},
        )  # fmt: skip


def test_vocabulary_of_pairs(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    path = _spoken(tmp_path / "m.gguf")
    oracle = tokenizers.Tokenizer.from_str(json.dumps(_trained()))
    layout = vkmnn.llm.layout.read_layout(path)
    assert layout.eos == {0}
    found = vkmnn.llm.text.Tokenizer(layout.folder, layout.keys)
    for text in (*tiny.TEXT, "  two  spaces\n\n", "<|user|>hello 123"):
        assert found.encode(text) == oracle.encode(text).ids
        assert found.decode(found.encode(text)) == oracle.decode(oracle.encode(text).ids)
    assert found.conversation([{"role": "user", "content": "hi"}]) == "<|user|>hi\n<|assistant|>"


def test_vocabulary_of_pieces(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    words = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    words += ["▁", "h", "e", "l", "o", "he", "ll", "hell", "hello", "▁hello"]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(words) - 259)]
    scores = [0.0, 0.0, 0.0, *[0.0] * 256, *(-float(n) for n in range(len(words) - 259))]
    keys = {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": words,
            "tokenizer.ggml.token_type": np.array(kinds), "tokenizer.ggml.scores": np.array(scores),
            "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0}  # fmt: skip
    found = vkmnn.llm.text.Tokenizer(tmp_path, keys)
    tokens = found.encode("hello é")
    assert [words[one] for one in tokens] == ["<s>", "▁hello", "▁", "<0xC3>", "<0xA9>"]
    assert found.decode(tokens) == "hello é"
    plain = vkmnn.llm.text.Tokenizer(tmp_path, {**keys, "tokenizer.ggml.add_space_prefix": False})
    assert [words[one] for one in plain.encode("hello", special=False)] == ["hello"]


@pytest.mark.parametrize(("pre", "text", "parts"), [
    ("llama-bpe", "a1234 DON'T", ["a", "123", "4", " DON", "'T"]),
    ("qwen2", "a12 'll", ["a", "1", "2", " '", "ll"]),
    ("gpt-2", "a1234 'll", ["a", "1234", " '", "ll"]),
    ("smollm", "a12", ["a", "1", "2"]),
    ("gpt-4o", "helloWorld's 1234", ["hello", "World's", " ", "123", "4"]),
    ("tekken", "helloWORLD 12", ["hello", "WORLD", " ", "1", "2"]),
    ("glm4", "a1234 DON'T", ["a", "123", "4", " DON", "'T"]),
    ("hunyuan", "a12 'll", ["a", "1", "2", " '", "ll"]),
    ("exaone", "a12 b", ["a", "1", "2", " b"]),
    ("llama4", "helloWorld 1234", ["hello", "World", " ", "123", "4"]),
    ("bloom", "one two, 12(x)", ["one", " two", ",", " 12", "(", "x", ")"]),
    ("viking", "a 12.", ["a", " ", "1", "2", "."]),
    ("falcon", "a=12345, don't", ["a", "=", "123", "45", ",", " don", "'", "t"]),
    ("deepseek-coder", "if x12:\n  y", ["if", " x", "1", "2", ":", "\n", " ", " y"]),
    ("deepseek-v3", "a_b 1234 $x\u4e00\u4e8c", ["a", "_b", " ", "123", "4", " $", "x",
                                                "\u4e00\u4e8c"]),
    ("seed-coder", "a12 !?\n", ["a", "1", "2", " !?", "\n"]),
    ("bailingmoe", "a12 !\n\nb", ["a", "1", "2", " !\n\n", "b"]),
])  # fmt: skip
def test_cuts_before_pairs(pre: str, text: str, parts: list[str]) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    from tokenizers import pre_tokenizers

    cuts = [pre_tokenizers.Split(tokenizers.Regex(one), "isolated")
            for one in vkmnn.llm.vocabulary.PATTERNS[pre]]  # fmt: skip
    found = pre_tokenizers.Sequence(cuts).pre_tokenize_str(text)
    assert [one for one, _ in found] == parts


@pytest.mark.parametrize("changes", [
    {"tokenizer.ggml.model": "t5"}, {"tokenizer.ggml.pre": "unheard-of"},
    {"tokenizer.ggml.merges": ["nothing"]}, {"tokenizer.ggml.token_type": [1]},
    {"tokenizer.ggml.merges": ["no such"]},
])  # fmt: skip
def test_vocabularies_that_are_not_known(changes: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    keys = read_source(_spoken(tmp_path / "m.gguf")).keys
    changes = {key: np.array(one) if key.endswith("type") else one for key, one in changes.items()}
    with pytest.raises(ModelError, match=r"tokenizer\.ggml"):
        vkmnn.llm.text.Tokenizer(tmp_path, {**keys, **changes})


# --- what is refused -----------------------------------------------------------------------------


def test_types_that_are_not_read_are_all_named(tmp_path: Path) -> None:
    tensors = described.gguf_tensors("llama", "Q8_0")
    path = described.write_gguf(tmp_path / "m.gguf", described.gguf_keys("llama"), tensors)
    data = bytearray(path.read_bytes())
    for name in ("blk.0.attn_q.weight", "blk.1.ffn_down.weight"):
        at = data.index(name.encode()) + len(name) + 4 + 16
        data[at : at + 4] = struct.pack("<I", 16)
    path.write_bytes(bytes(data))
    with pytest.raises(UnsupportedOpError, match="IQ2_XXS") as error:
        vkmnn.llm.load(path)
    assert len(error.value.nodes) == 2


@pytest.mark.parametrize(("changes", "said"), [
    ({"model_type": "mamba"}, "mamba"),
    ({"num_hidden_layers": 0}, "num_hidden_layers"),
    ({"num_hidden_layers": 3}, "blk.2"),
    ({"head_dim": 12}, "q_proj"),
    ({"hidden_size": "wide"}, "hidden_size"),
    ({"rope_scaling": {"rope_type": "unheard-of"}}, "rope_type"),
    ({"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0]}}, "short_factor"),
    ({"rope_theta": 0.0}, "rope_theta"),
    ({"partial_rotary_factor": 2.0}, "partial_rotary_factor"),
    ({"quantization_config": {"quant_method": "gptq"}}, "gptq"),
    ({"layer_types": ["full_attention"]}, "layer_types"),
    ({"hidden_act": "gelu_new"}, "hidden_act"),
    ({"model_type": "granite", "logits_scaling": 0.0}, "logits_scaling"),
    ({"model_type": "cohere", "use_qk_norm": True}, "use_qk_norm"),
    ({"model_type": "stablelm", "qk_layernorm": True}, "qk_layernorm"),
    ({"model_type": "phi", "hidden_act": "silu"}, "hidden_act"),
])  # fmt: skip
def test_configurations_that_make_no_sense(
    changes: dict[str, Any], said: str, tmp_path: Path
) -> None:
    folder = described.write_folder(tmp_path / "m", "llama")
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), "utf-8")
    with pytest.raises(ModelError, match=said):
        vkmnn.llm.load(folder)


def test_configurations_of_pictures_and_text(store: dict[str, Any], tmp_path: Path) -> None:
    """Gemma 3 nests its text configuration, without defaults, and prefixes names."""
    folder = _written("folder.gemma3", store, tmp_path)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    inner = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, **config}
    for key in ("rope_parameters", "model_type", "layer_types", "max_position_embeddings"):
        del inner[key]
    whole = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", **inner}}
    (folder / "config.json").write_text(json.dumps(whole), "utf-8")
    tensors = described.weights_of("gemma3", int(store["folder.gemma3.seed"]))
    renamed = {f"language_model.{name}": one for name, one in tensors.items()}
    renamed["vision_tower.weight"] = np.zeros(3, np.float32)
    described.write_safetensors(folder / "model.safetensors", renamed)
    source = read_source(folder)
    assert source.architecture.context == 131072
    assert [one > 0 for one in source.architecture.windows] == [True] * 5 + [False, True]
    with vkmnn.llm.load(folder, capacity=64) as model:
        assert model.generate(PROMPT, TOKENS).tokens == store["folder.gemma3.tokens"].tolist()


def test_headers_of_safetensors_that_lie(tmp_path: Path) -> None:
    folder = described.write_folder(tmp_path / "m", "llama")
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + length])
    name = "model.norm.weight"
    begin, end = header[name]["data_offsets"]
    for entry in (
        {"dtype": "F32", "shape": [64], "data_offsets": [begin, end + 4]},
        {"dtype": "F32", "shape": [1 << 60], "data_offsets": [begin, begin + (1 << 62)]},
        {"dtype": "F32", "shape": [64], "data_offsets": [0, 256]},
        {"dtype": "F32", "shape": [-64], "data_offsets": [begin, end]},
        {"dtype": "F32", "shape": "64", "data_offsets": [begin, end]},
        {"dtype": ["F32"], "shape": [64], "data_offsets": [begin, end]},
        {"shape": [64]}, None, 7,
    ):  # fmt: skip
        text = json.dumps({**header, name: entry}).encode()
        path.write_bytes(struct.pack("<Q", len(text)) + text + whole[8 + length :])
        with pytest.raises(ModelError, match="damaged"):
            read_source(folder)
    index = {"weight_map": {name: "../model.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
    with pytest.raises(ModelError, match="not a file"):
        read_source(folder)


def _of_e2m1(blocks: Any, scales: Any) -> Any:
    """Return the numbers of MXFP4 by the OCP's specification, neighbours in one byte."""
    numbers = []
    for code in range(16):
        exponent, mantissa = code >> 1 & 3, code & 1
        size = (1 + mantissa / 2) * 2.0 ** (exponent - 1) if exponent else mantissa / 2
        numbers.append(-size if code & 8 else size)
    codes = np.stack([blocks & 15, blocks >> 4], -1).reshape(*scales.shape, 32)
    plain = np.array(numbers)[codes] * 2.0 ** (scales.astype(np.float64)[..., None] - 127)
    return plain.reshape(*scales.shape[:-1], -1).astype(np.float32)


def _as_transformers_has_it(kind: str, shape: Any, data: bytes) -> tuple[Any, Any]:
    """Return blocks and scales of a tensor whose bytes are those of a GGUF file."""
    assert kind == "MXFP4"
    found = np.frombuffer(data, np.uint8).reshape(*shape[:-1], shape[-1] // 32, 17)
    codes = np.concatenate([found[..., 1:] & 15, found[..., 1:] >> 4], -1)
    return codes[..., ::2] | codes[..., 1::2] << 4, found[..., 0]


def _gpt_oss(folder: Path, seed: int, coded: bool, dtype: str = "F32") -> Path:
    """Write gpt-oss as transformers stores it, with the weights of the GGUF file of this seed."""
    stored = described.gguf_tensors("gpt_oss", "MXFP4", seed)
    made: dict[str, Any] = {}
    for key in described.weights_of("gpt_oss", seed):
        kind, shape, data = stored[described.gguf_name(key, True)]
        if kind == "F32":
            made[key] = np.frombuffer(data, np.float32).reshape(shape)
        else:
            pair = _as_transformers_has_it(kind, shape, data)
            made[key] = pair if "_exps." in key and coded else _of_e2m1(*pair)
    for gate in [key for key in made if ".gate_exps." in key]:
        whole, _, kind = gate.rpartition(".gate_exps.")
        one, two, down = (
            made.pop(f"{whole}.{part}_exps.{kind}") for part in ("gate", "up", "down")
        )
        for part, arrays in (("gate_up_proj", (one, two)), ("down_proj", (down,))):
            name = f"{whole}.experts.{part}"
            if kind == "weight" and coded:
                for number, suffix in enumerate(("_blocks", "_scales")):
                    made[name + suffix] = _alternating([array[number] for array in arrays])
            elif kind == "weight":
                made[name] = _alternating(arrays).swapaxes(1, 2)
            else:
                made[f"{name}_bias"] = _alternating(arrays)
    folder.mkdir()
    config = described.config_of("gpt_oss")
    if coded:
        config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    names = sorted(made)
    for number in range(2):  # blocks and scales in different files
        file = folder / f"model-{number + 1:05}-of-00002.safetensors"
        described.write_safetensors(file, {one: made[one] for one in names[number::2]}, dtype)
    return folder


def _alternating(arrays: Any) -> Any:
    """Return rows of arrays in turns."""
    return np.stack(arrays, 2).reshape(arrays[0].shape[0], -1, *arrays[0].shape[2:])


@pytest.mark.parametrize("coded", [True, False])
def test_folder_of_gpt_oss(coded: bool, store: dict[str, Any], tmp_path: Path) -> None:
    """The experts as blocks and scales, or as floats, give what transformers computes."""
    case = "file.gpt_oss_mxfp4"
    folder = _gpt_oss(tmp_path / "m", int(store[f"{case}.seed"]), coded)
    wanted = store[f"{case}.logits"]
    assert read_source(folder).kinds["MXFP4"] == (6 if coded else 0)
    assert np.abs(_logits(folder) - wanted).max() / np.ptp(wanted) < 1e-5
    with vkmnn.llm.load(folder) as model:
        assert model.generate(PROMPT, TOKENS).tokens == store[f"{case}.tokens"].tolist()


def test_experts_of_gpt_oss_are_read_in_their_order(tmp_path: Path) -> None:
    """Every matrix of every expert, in parts of a few rows, is decoded as the OCP specifies."""
    folder = _gpt_oss(tmp_path / "m", 3, True)
    weights = read_source(folder).weights
    for name, (kind, shape, data) in described.gguf_tensors("gpt_oss", "MXFP4", 3).items():
        if "_exps.weight" in name:
            wanted = _of_e2m1(*_as_transformers_has_it(kind, shape, data))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr("vkmnn.converter.language.folder_experts.PART", 512)
                assert np.array_equal(weights[name].floats(), wanted)


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("down_proj_scales", lambda one: one[:, :-1]),
        ("down_proj_blocks", lambda one: one[..., :-1]),
        ("gate_up_proj_blocks", lambda one: one[:, :, 0]),
        ("gate_up_proj_bias", lambda one: one[:, :-1]),
        ("gate_up_proj_bias", lambda one: one[0]),
        ("down_proj_scales", lambda one: np.full_like(one, 255)),
        ("down_proj_scales", None),
        ("down_proj_blocks", None),
    ],
)
def test_experts_of_gpt_oss_that_lie(part: str, change: Any, tmp_path: Path) -> None:
    changed = f"model.layers.1.mlp.experts.{part}"
    write = described.write_safetensors

    def written(path: Path, tensors: Any, dtype: str) -> None:
        if changed in tensors:
            one = tensors.pop(changed)
            tensors |= {changed: np.ascontiguousarray(change(one))} if change else {}
        write(path, tensors, dtype)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(described, "write_safetensors", written)
        folder = _gpt_oss(tmp_path / "m", 0, True)
    with pytest.raises(VkmnnError, match=r"damaged|not read|no tensor"):
        vkmnn.llm.load(folder, "cpu")


def test_limit_of_the_gates_and_other_methods(tmp_path: Path) -> None:
    folder = _gpt_oss(tmp_path / "m", 0, True)
    path = folder / "config.json"
    config = json.loads(path.read_text("utf-8"))
    assert read_source(folder).architecture.traits.limit == 7.0
    path.write_text(json.dumps({**config, "swiglu_limit": 5.0}), "utf-8")
    assert read_source(folder).architecture.traits.limit == 5.0
    for change in ({"quantization_config": {"quant_method": "gptq"}}, {"model_type": "llama"}):
        path.write_text(json.dumps({**config, **change}), "utf-8")
        with pytest.raises(ModelFileError, match="quantised by"):
            read_source(folder)


@pytest.mark.parametrize("kind", ["gguf", "safetensors"])
def test_mutated_files_raise_typed_errors(kind: str, tmp_path: Path) -> None:
    """Bytes of headers are changed, inserted and removed: errors are typed, and nothing hangs."""
    rng = np.random.default_rng(11)
    if kind == "gguf":
        path = _spoken(tmp_path / "m.gguf")
        subject, head = path, path.read_bytes().index(b"blk.1.ffn_down.weight")
    else:
        subject = described.write_folder(tmp_path / "m", "tied")
        path = subject / "model.safetensors"
        head = struct.unpack("<Q", path.read_bytes()[:8])[0] + 8
    whole = path.read_bytes()
    failed = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(0, head))
            how = rng.integers(0, 4)
            if how == 0:
                data[at] = int(rng.integers(0, 256))
            elif how == 1:
                data[at : at + 8] = rng.integers(0, 256, 8, dtype=np.uint8).tobytes()
            elif how == 2:
                del data[at : at + int(rng.integers(1, 40))]
            else:
                data[at : at + 4] = struct.pack("<I", int(rng.choice([0, 1, 2**31, 2**32 - 1])))
        if rng.integers(0, 10) == 0:
            del data[int(rng.integers(0, len(data))) :]
        path.write_bytes(bytes(data))
        try:
            source = read_source(subject)
            model = source.network(64)
            for number in list(model.weights)[::7]:
                model.weights[number]
            vkmnn.llm.vocabulary.ends_of(source.keys)
            source.section()
        except VkmnnError:
            failed += 1
    assert failed > 60
