"""Folders and the hub's cache: which files are taken, and what is said where something is wrong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vkmnn import InvalidInputError, ModelFileError
from vkmnn.llm.hub import find_folder
from vkmnn.llm.layout import is_model_folder, read_layout


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


def test_unknown_layouts(tmp_path: Path) -> None:
    assert not is_model_folder(tmp_path)
    with pytest.raises(ModelFileError, match="layout is known"):
        read_layout(tmp_path)
    with pytest.raises(ModelFileError, match="there is no folder"):
        find_folder("no such folder")
    with pytest.raises(InvalidInputError, match="no revisions"):
        find_folder(tmp_path, "main")


def test_the_hubs_cache_is_read_offline(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    repo = tmp_path / "hub" / "models--someone--tiny"
    for commit in ("a" * 40, "b" * 40):
        folder_of(repo / "snapshots" / commit, "onnx/model.onnx", commit=commit)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("b" * 40, "utf-8")
    code = (
        "import sys, vkmnn\n"
        "from vkmnn.llm.hub import find_folder\n"
        "for name, revision in (('someone/tiny', None), ('hf://someone/tiny', 'a' * 40),"
        " ('someone/tiny@' + 'a' * 40, None)):\n"
        "    print(find_folder(name, revision).name)\n"
        "for name, revision in (('someone/other', None), ('someone/tiny', 'c' * 40)):\n"
        "    try: find_folder(name, revision)\n"
        "    except vkmnn.ModelFileError as error: print('cannot be had' in str(error))\n"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    environment["HF_HUB_CACHE"] = str(tmp_path / "hub")
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert done.stdout.split() == ["b" * 40, "a" * 40, "a" * 40, "True", "True"]
    shutil.rmtree(repo)
