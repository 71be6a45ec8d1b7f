"""llama.cpp as an engine of `bench llm`."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from benchmarks import llama_cpp, llm

SIZES = llm.Sizes(layers=1, width=64, heads=2, kv_heads=1, inner=96, vocabulary=64, positions=64)


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, gpu: str = "a GPU") -> Path:
    """Put a program on the PATH that notes its arguments and gives rates."""
    rows = [
        {"n_prompt": 8, "n_gen": 0, "avg_ts": 40.5, "gpu_info": gpu},
        {"n_prompt": 0, "n_gen": 4, "avg_ts": 12.25, "gpu_info": gpu},
    ]
    program, noted = folder / llama_cpp.PROGRAM, folder / "noted"
    program.write_text(
        f"#!/bin/sh\necho \"$GGML_VK_VISIBLE_DEVICES $@\" >> {noted}\necho '{json.dumps(rows)}'\n",
        "utf-8",
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return noted


def test_it_takes_part_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = llm._gguf_shape(SIZES)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert llama_cpp.find(tmp_path, shape, 3) is None
    noted = install(tmp_path, monkeypatch)
    monkeypatch.setattr(llama_cpp, "write_gguf", lambda path, shape: path.write_bytes(b""))
    run = llama_cpp.find(tmp_path, shape, 3)
    assert run is not None
    assert run(8, 4) == (40.5, 12.25)
    assert noted.read_text("utf-8").startswith("3 -m")
    assert "-p 8 -n 4" in noted.read_text("utf-8")


def test_its_own_cpu_backend_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, gpu="")
    monkeypatch.setattr(llama_cpp, "write_gguf", lambda path, shape: path.write_bytes(b""))
    run = llama_cpp.find(tmp_path, llm._gguf_shape(SIZES), 0)
    assert run is not None
    with pytest.raises(RuntimeError, match="did not use Vulkan device 0"):
        run(8, 4)


def test_without_the_package_it_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch)
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert llama_cpp.find(tmp_path, llm._gguf_shape(SIZES), 0) is None


def test_every_product_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file holds what llama.cpp asks for, with the products in four bits."""
    written: dict[str, object] = {}

    class Writer:
        def __init__(self, path: str, kind: str) -> None:
            assert kind == "llama"

        def add_tensor(self, name: str, array: object, raw_dtype: object = None) -> None:
            written[name] = raw_dtype

        def __getattr__(self, name: str) -> object:
            return lambda *values: None

    gguf = types.ModuleType("gguf")
    gguf.GGUFWriter = Writer  # type: ignore[attr-defined]
    gguf.GGMLQuantizationType = types.SimpleNamespace(Q4_0="Q4_0")  # type: ignore[attr-defined]
    gguf.quants = types.SimpleNamespace(quantize=lambda array, kind: array)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "gguf", gguf)
    llama_cpp.write_gguf(tmp_path / "model.gguf", llm._gguf_shape(SIZES))
    coded = {name for name, kind in written.items() if kind == "Q4_0"}
    assert len(coded) == 8
    assert set(written) - coded == {
        "token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight"
    }  # fmt: skip
