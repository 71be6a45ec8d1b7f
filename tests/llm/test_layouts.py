"""Folders and the hub's cache: the chosen files, and the messages about errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.llm.tiny import write_tokenizer
from vkmnn import InvalidInputError, ModelFileError, VkmnnError
from vkmnn.cli.info import describe_folder
from vkmnn.llm.layout import is_model_folder, read_layout
from vkmnn.llm.text import Tokenizer
from vkmnn.sources.locate import model_folder


def folder_of(root: Path, *files: str, **config: object) -> Path:
    for name in files:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (root / "config.json").write_text(json.dumps({"model_type": "llama", **config}), "utf-8")
    return root


def test_variants(tmp_path: Path) -> None:
    folder_of(tmp_path, *(f"onnx/model{v}.onnx" for v in ("", "_q4", "_fp16", "_q4f16", "_int8")),
              max_position_embeddings=77, eos_token_id=[3, 4], bos_token_id=1)  # fmt: skip
    layout = read_layout(tmp_path)
    assert (layout.kind, layout.variant, layout.context) == ("decoder", "q4f16", 77)
    assert (layout.eos, layout.bos) == ({3, 4}, 1)
    assert sorted(layout.variants) == ["", "fp16", "int8", "q4", "q4f16"]
    assert read_layout(tmp_path, "fp32").decoder == tmp_path / "onnx" / "model.onnx"
    assert read_layout(tmp_path, "int8").decoder.name == "model_int8.onnx"
    with pytest.raises(InvalidInputError, match="no variant 'bnb4'") as error:
        read_layout(tmp_path, "bnb4")
    assert "q4f16" in str(error.value)


def test_merged_decoders_come_first(tmp_path: Path) -> None:
    names = ("decoder_model", "decoder_with_past_model", "decoder_model_merged")
    folder_of(tmp_path, *(f"onnx/{name}_quantized.onnx" for name in names))
    assert read_layout(tmp_path).decoder.name == "decoder_model_merged_quantized.onnx"


def test_encoders_make_a_folder_seq2seq(tmp_path: Path) -> None:
    folder_of(tmp_path, "encoder_model.onnx", "decoder_model_merged.onnx")
    layout = read_layout(tmp_path)
    assert layout.kind == "seq2seq"
    assert layout.encoder == tmp_path / "encoder_model.onnx"


def test_embedding_models(tmp_path: Path) -> None:
    folder_of(tmp_path, "onnx/model.onnx", model_type="bert", architectures=["BertModel"])
    assert read_layout(tmp_path).kind == "embedding"


def test_genai_folders(tmp_path: Path) -> None:
    decoder = {"filename": "model.onnx", "inputs": {"past_key_names": "kv.%d.k"},
               "outputs": {"present_key_names": "new.%d.k"}}  # fmt: skip
    model = {"decoder": decoder, "context_length": 9, "eos_token_id": 2}
    path = tmp_path / "genai_config.json"
    path.write_text(json.dumps({"model": model}), "utf-8")
    with pytest.raises(ModelFileError, match=r"model\.onnx' is missing"):
        read_layout(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"")
    layout = read_layout(tmp_path)
    assert layout.past["kv.*.k"] == "new.*.k"
    assert layout.past["past_key_values.*.value"] == "present.*.value"
    decoder["filename"] = "../other/model.onnx"
    path.write_text(json.dumps({"model": model}), "utf-8")
    with pytest.raises(ModelFileError, match="not a file in"):
        read_layout(tmp_path)
    path.write_text("[1]", "utf-8")
    with pytest.raises(ModelFileError, match="no JSON object"):
        read_layout(tmp_path)


WRONG: list[tuple[str, dict[str, object] | bytes, str]] = [
    ("config.json", b"[" * 100_000, "cannot be read"),
    ("config.json", b'{"a":' * 100_000, "cannot be read"),
    ("config.json", b"\xff\xfe{}", "cannot be read"),
    ("config.json", b'{"eos_token_id": ' + b"1" * 5000 + b"}", "cannot be read"),
    ("config.json", b"", "cannot be read"),
    ("config.json", b'"text"', "no JSON object"),
    ("config.json", {"eos_token_id": "abc"}, "'eos_token_id' is \"abc\" instead of a token"),
    ("config.json", {"eos_token_id": [1, "2"]}, "'eos_token_id' is a list instead of"),
    ("config.json", {"eos_token_id": 1e30}, "'eos_token_id' is 1e\\+30"),
    ("config.json", {"bos_token_id": True}, "'bos_token_id' is true"),
    ("config.json", {"text_config": []}, "'text_config' is a list instead of an object"),
    ("config.json", {"text_config": {"bos_token_id": {}}}, "'text_config.bos_token_id' is an obj"),
    ("config.json", {"model_type": ["x"]}, "'model_type' is a list instead of a text"),
    ("config.json", {"architectures": "x"}, "'architectures' is \"x\" instead of a list"),
    ("config.json", {"architectures": [None]}, "'architectures'"),
    ("config.json", {"max_position_embeddings": "many"}, "'max_position_embeddings'"),
    ("config.json", {"n_positions": -1}, "'n_positions' is -1 instead of a whole number"),
    ("config.json", {"n_ctx": 10**400}, "'n_ctx'"),
    ("generation_config.json", {"eos_token_id": {}}, "generation_config.json' is not valid"),
    ("genai_config.json", {"model": "x"}, "'model' is \"x\" instead of an object"),
    ("genai_config.json", {"model": {"decoder": []}}, "'model.decoder' is a list"),
    ("genai_config.json", {"model": {"decoder": {"filename": 5}}}, "'model.decoder.filename' is 5"),
    ("genai_config.json", {"model": {"decoder": {"filename": "x" * 5000}}}, "cannot be a file"),
    ("genai_config.json", {"model": {"decoder": {"filename": "\0"}}}, "is missing|cannot be"),
    ("genai_config.json", {"model": {"decoder": {"filename": "\ud800"}}}, "instead of a text"),
    ("genai_config.json", {"model": {"decoder": {"filename": "."}}}, "is missing"),
    ("genai_config.json", {"model": {"decoder": {"inputs": 3}}}, "'model.decoder.inputs' is 3"),
    ("genai_config.json", {"model": {"decoder": {"outputs": {"logits": []}}}}, "outputs.logits'"),
    ("genai_config.json", {"model": {"context_length": "abc"}}, "'model.context_length' is"),
    ("genai_config.json", {"search": []}, "'search' is a list"),
    ("tokenizer_config.json", {"eos_token": 3}, "'eos_token' is 3 instead of a text"),
    ("tokenizer_config.json", {"eos_token": {"content": []}}, "'eos_token.content' is a list"),
    ("tokenizer_config.json", {"chat_template": {}}, "'chat_template' is an object"),
    ("tokenizer_config.json", {"chat_template": [1]}, "'chat_template' is a list instead"),
    ("tokenizer_config.json", {"chat_template": [{"name": [], "template": "x"}]},
     r"'chat_template\[0\].name' is a list"),
    ("tokenizer_config.json", {"chat_template": [{"name": "default", "template": 1}]},
     r"'chat_template\[0\].template' is 1"),
    ("chat_template.jinja", b"\xff", "chat_template.jinja' cannot be read"),
]  # fmt: skip


def read_whole(folder: Path) -> None:
    """Read everything in a folder except its networks."""
    read_layout(folder)
    describe_folder(folder)
    tokenizer = Tokenizer(folder)
    assert len(tokenizer.eos) <= 1
    tokenizer.conversation([{"role": "user", "content": "hi"}])


@pytest.mark.parametrize(
    ("name", "content", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_is_wrong_in_a_folder_is_named(
    name: str, content: dict[str, object] | bytes, message: str, tmp_path: Path
) -> None:
    pytest.importorskip("tokenizers")
    genai = {"model": {"decoder": {"filename": "model.onnx"}}}
    folder_of(tmp_path, "model.onnx")
    write_tokenizer(tmp_path)
    if name == "genai_config.json" and isinstance(content, dict):
        model = content.get("model", {})
        if isinstance(model, dict) and isinstance(model.get("decoder", {}), dict):
            model = {**genai["model"], **model}
            model["decoder"] = {**genai["model"]["decoder"], **model["decoder"]}
        content = {**content, "model": model}
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / name).write_bytes(data)
    with pytest.raises(ModelFileError, match=message) as error:
        read_whole(tmp_path)
    assert name in str(error.value)
    str(error.value).encode()


def test_what_a_folder_may_say(tmp_path: Path) -> None:
    """Nothing at all, nulls, and -1 for no token; the text's part takes precedence."""
    folder_of(tmp_path, "model.onnx", eos_token_id=-1, bos_token_id=None, architectures=None,
              text_config={"bos_token_id": [7, -1], "n_ctx": None}, n_ctx=5)  # fmt: skip
    layout = read_layout(tmp_path)
    assert (layout.eos, layout.bos, layout.context) == (set(), 7, 5)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [2, 3]}', "utf-8-sig")
    assert read_layout(tmp_path).eos == {2, 3}


ODD: tuple[object, ...] = (
    *(
        None,
        True,
        0,
        -1,
        3,
        2**31,
        2**63,
        10**400,
        1.5,
        float("nan"),
        "",
        "x",
        "..",
        "\0",
        "\ud800",
    ),
    *("a" * 5000, "*", "%d", "input_ids", "{{ 1 / 0 }}", "{% for", [], [1], ["a"], [[]], {}),
    *({"a": 1}, {"content": 1}, [{"name": [], "template": {}}], [{"name": "default"}]),
)


@pytest.mark.parametrize("seed", range(4))
def test_folders_at_random(seed: int, tmp_path: Path) -> None:
    """Whatever the files contain, it is understood or refused by name."""
    pytest.importorskip("tokenizers")
    random = Random(seed)
    folder_of(tmp_path, "model.onnx", eos_token_id=2, text_config={"n_ctx": 9}, architectures=["A"])
    write_tokenizer(tmp_path, None)
    decoder = {"filename": "model.onnx", "inputs": {"past_key_names": "kv.%d"}, "outputs": {}}
    whole = {"model": {"decoder": decoder, "eos_token_id": [2], "context_length": 9}, "search": {}}
    genai, seen = tmp_path / "genai_config.json", set()

    def changed(value: object) -> object:
        if isinstance(value, dict) and value and random.random() < 0.9:
            key = random.choice([*value])
            return {**value, key: changed(value[key])}
        return random.choice(ODD)

    for _ in range(60):
        path = random.choice([genai, *tmp_path.glob("*config.json")])
        before = path.read_text("utf-8") if path.exists() else json.dumps(whole)
        path.write_text(json.dumps(changed(json.loads(before))), "utf-8")
        try:
            read_whole(tmp_path)
        except VkmnnError as error:
            seen.add(type(error))
            str(error).encode()
            if error.unexpected:
                raise
        if path == genai:
            genai.unlink()
        else:
            path.write_text(before, "utf-8")
    assert ModelFileError in seen


def test_unknown_layouts(tmp_path: Path) -> None:
    assert not is_model_folder(tmp_path)
    with pytest.raises(ModelFileError, match="layout is known"):
        read_layout(tmp_path)
    with pytest.raises(ModelFileError, match="there is no folder"):
        model_folder("no such folder")
    with pytest.raises(InvalidInputError, match="no revisions"):
        model_folder(tmp_path, "main")


def test_the_hubs_cache_is_read_offline(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repo = tmp_path / "hub" / "models--someone--tiny"
    for commit in ("a" * 40, "b" * 40):
        folder_of(repo / "snapshots" / commit, "onnx/model.onnx", commit=commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("b" * 40, "utf-8")
    code = (
        "import sys, vkmnn\n"
        "from vkmnn.sources.locate import model_folder\n"
        "for name, revision in (('someone/tiny', None), ('hf://someone/tiny', 'a' * 40),"
        " ('someone/tiny@' + 'a' * 40, None)):\n"
        "    print(model_folder(name, revision).path.name)\n"
        "for name, revision in (('someone/other', None), ('someone/tiny', 'c' * 40)):\n"
        "    try: model_folder(name, revision)\n"
        "    except vkmnn.ModelFileError as error: print('cannot be downloaded' in str(error))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment["HF_HUB_CACHE"] = str(tmp_path / "hub")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["b" * 40, "a" * 40, "a" * 40, "True", "True"]
    shutil.rmtree(repo)
