"""Weights of files that describe networks: once the device has them, the host lets them go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from tests.llm import described
from vkmnn.base.lazy_array import LARGE, as_lazy, whole
from vkmnn.converter.native.write import WriteOptions, write_model
from vkmnn.errors import ModelFileError
from vkmnn.llm import LanguageModel
from vkmnn.opening import load_network
from vkmnn.runtime.device import enumerate_devices, open_device

pytestmark = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")

BROAD: dict[str, Any] = {
    **described.CONFIGS["wide"], "hidden_size": 512, "intermediate_size": 1024, "head_dim": 64,
    "num_attention_heads": 8, "num_key_value_heads": 2,
}  # fmt: skip
PROMPT = [1, 2, 3]
LONG = list(range(40))


@pytest.fixture(autouse=True)
def broad(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(described.CONFIGS, "broad", BROAD)


def _written(folder: Path, kind: str) -> Path:
    if kind == "folder":
        return described.write_folder(folder / "broad", "broad", "F16")
    return described.write_file(folder / "broad.gguf", "broad", kind)


def _held(model: LanguageModel) -> list[str]:
    """Return the large weights in the host's memory."""
    network = model._decoder._network
    found = []
    for graph in (network.graph, network.source):
        for name, array in graph.constants.items():
            made = as_lazy(array)
            if made is None:
                found += [name] if array.nbytes >= LARGE else []
            elif made.root._content is not None:
                found.append(name)
    return found


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K", "Q6_K", "Q2_K", "F16", "folder"])
def test_weights_on_the_device_are_not_on_the_host(kind: str, tmp_path: Path) -> None:
    path = _written(tmp_path, kind)
    with vkmnn.llm.load(path, device="cpu", capacity=128) as model:
        wanted = [model.generate(text, 4).tokens for text in (PROMPT, LONG)]
        assert _held(model)  # numpy reads them in every run
    with vkmnn.llm.load(path, capacity=128) as model:
        for _ in range(2):
            assert [model.generate(text, 4).tokens for text in (PROMPT, LONG)] == wanted
            texts = model.generate([PROMPT, LONG, PROMPT], 4)
            assert [one.tokens for one in texts] == [*wanted, wanted[0]]
            assert not _held(model)
            # All numbers of rows are planned now, and their forms of the weights uploaded.
            (path if path.is_file() else path / "model.safetensors").unlink(missing_ok=True)


def test_a_reopened_device_gets_them_from_the_file(tmp_path: Path) -> None:
    path = _written(tmp_path, "Q4_K")
    with vkmnn.llm.load(path, capacity=128, on_device_lost="rebuild") as model:
        wanted = model.generate(PROMPT, 4).tokens
        open_device().mark_lost("for the test")
        assert model.generate(PROMPT, 4).tokens == wanted
        assert not _held(model)


@pytest.mark.parametrize("kind", ["Q4_0", "folder"])
@pytest.mark.parametrize("change", ["other weights", "removed", "shorter"])
def test_a_file_that_has_changed_is_not_read(kind: str, change: str, tmp_path: Path) -> None:
    path = _written(tmp_path, kind)
    file = path if path.is_file() else path / "model.safetensors"
    with vkmnn.llm.load(path, capacity=128, on_device_lost="rebuild") as model:
        wanted = model.generate(PROMPT, 4).tokens
        data, status = file.read_bytes(), file.stat()
        if change == "removed":
            file.unlink()
        else:
            file.write_bytes(data[:-64] + bytes(64 if change == "other weights" else 0))
            os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns + 1000))
        open_device().mark_lost("for the test")
        with pytest.raises(ModelFileError, match=r"has changed|cannot be read|shorter"):
            model.generate(PROMPT, 4)
        file.write_bytes(data)
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert model.generate(PROMPT, 4).tokens == wanted


def test_networks_are_saved_without_keeping_their_weights(tmp_path: Path) -> None:
    path = _written(tmp_path, "Q4_K")
    with vkmnn.llm.load(path, capacity=128) as model:
        model.generate(PROMPT, 4)
        graph = model._decoder._network.graph
        write_model(graph, tmp_path / "saved.vkmnn", WriteOptions(False))
        assert not _held(model)
        saved = load_network(tmp_path / "saved.vkmnn").graph.constants
        assert saved.keys() == graph.constants.keys()
        for name, array in graph.constants.items():
            assert np.array_equal(saved[name], whole(array))


def test_a_session_plans_other_shapes(tmp_path: Path) -> None:
    path = _written(tmp_path, "Q8_0")
    results = {}
    for device in ("cpu", "auto"):
        session = vkmnn.InferenceSession(path, device)
        for batch, tokens in ((1, 3), (2, 20), (1, 3)):
            feeds: dict[str, Any] = {"input_ids": np.arange(batch * tokens).reshape(batch, tokens)}
            feeds["attention_mask"] = np.ones((batch, tokens), np.int64)
            for info in session.get_inputs():
                if info.name.startswith("past"):
                    feeds[info.name] = np.zeros((batch, info.shape[1], 0, info.shape[3]), "f4")
            made = session.run(["logits"], feeds)[0]
            wanted = results.setdefault((batch, tokens), made)
            assert np.abs(made - wanted).max() < 1e-3 * np.ptp(wanted)


CHILD = """
import gc, sys
import vkmnn
def used():
    gc.collect()
    lines = open("/proc/self/status").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
small = vkmnn.llm.load(sys.argv[1], capacity=128)
small.generate([1, 2, 3], 2)
before = used()
large = vkmnn.llm.load(sys.argv[2], capacity=128)
loaded = used()
large.generate([1, 2, 3], 2)
print(loaded - before, used() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_memory_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Equal layers need the same kernels: the second model adds weights, and little else.
    paths = []
    changes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 1}
    monkeypatch.setitem(described.CONFIGS, "broad", {**BROAD, **changes})
    tensors, keys = described.gguf_tensors("broad", "Q4_0"), described.gguf_keys("broad")
    for layers in (1, 8):
        more = {name.replace("blk.0", f"blk.{layer}"): stored
                for name, stored in tensors.items() for layer in range(layers)}  # fmt: skip
        count = {"llama.block_count": layers}
        paths.append(described.write_gguf(tmp_path / f"{layers}.gguf", {**keys, **count}, more))
    size = paths[1].stat().st_size / 1024
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *paths], capture_output=True, text=True, check=True
    )
    loaded, used = (int(number) / size for number in done.stdout.split())
    # Weights in host memory and on a device in host memory would be 2.
    assert loaded < 1.6
    assert used < 1.6
