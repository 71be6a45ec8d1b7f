"""What a network took last is built as soon as it is opened again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.runtime.conftest import own_device as own_device
from vkmnn import InferenceSession
from vkmnn.ir import DType, Graph, Op, TensorInfo
from vkmnn.ir.ops import UnaryAttrs
from vkmnn.runtime import Device, Shader, open_device
from vkmnn.runtime.pipeline import SpecValues
from vkmnn.shaders import load_shader
from vkmnn.vulkan.last_pipelines import LastPipelines

COPY, POOL = load_shader("copy_buffer"), load_shader("pool_f32_texel")


def network(*kinds: str) -> Graph:
    infos = [TensorInfo(name, DType.FLOAT32, (4, 8)) for name in ("x", f"t{len(kinds)}")]
    names = ["x", *(f"t{number}" for number in range(1, len(kinds) + 1))]
    ops = [
        Op("UnaryOp", f"op{number}", [names[number]], [names[number + 1]], UnaryAttrs(kind))
        for number, kind in enumerate(kinds)
    ]
    return Graph("network", infos[:1], infos[1:], ops)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(tmp_path))


def last(device: Device, *kinds: str, fp16: bool = False, spacious: bool = False) -> LastPipelines:
    return LastPipelines(device.info, network(*kinds), fp16=fp16, spacious=spacious)


def test_what_is_noted_is_loaded(own_device: Device):
    own_device_last = last(own_device, "TANH")
    assert own_device_last.load() == []
    own_device_last.note([(COPY, {}), (POOL, {"KIND": 1})])
    own_device_last.note([(COPY, {})])
    found = last(own_device, "TANH").load()
    assert [shader for shader, _ in found] == [COPY, POOL]
    assert found[1][1]["KIND"] == 1
    assert last(own_device, "TANH", "NEG").load() == []
    assert last(own_device, "TANH", fp16=True).load() == []
    assert last(own_device, "TANH", spacious=True).load() == []


def test_networks_replace_theirs_and_the_oldest_go(own_device: Device):
    for length in range(1, 40):
        last(own_device, *["TANH"] * length).note([(COPY, {})])
    last(own_device, *["TANH"] * 39).note([(POOL, {})])
    known = [bool(last(own_device, *["TANH"] * n).load()) for n in range(1, 40)]
    assert known == [False] * 7 + [True] * 32
    assert [shader for shader, _ in last(own_device, *["TANH"] * 39).load()] == [POOL]


def test_shaders_of_others_are_left_out(own_device: Device):
    other = replace(COPY, name="not_there")
    changed = replace(COPY, digest="0" * 64)
    last(own_device, "TANH").note([(other, {}), (changed, {}), (COPY, {})])
    assert [shader for shader, _ in last(own_device, "TANH").load()] == [COPY]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"a": 3}', '{"NETWORK": ["[1"]}', "[" * 9999])
def test_damaged_files_are_ignored(own_device: Device, content: str):
    one = last(own_device, "TANH")
    one.note([(COPY, {})])
    (network_key,) = json.loads(one.path.read_text())
    one.path.write_text(content.replace("NETWORK", network_key))
    assert last(own_device, "TANH").load() == []
    last(own_device, "TANH").note([(POOL, {})])
    assert [shader for shader, _ in last(own_device, "TANH").load()] == [POOL]


def test_a_session_begins_with_them(monkeypatch: pytest.MonkeyPatch, own_device: Device):
    asked: list[Sequence[tuple[Shader, SpecValues]]] = []
    build = Device.build_ahead

    def build_ahead(self: Device, wanted: Sequence[tuple[Shader, SpecValues]]) -> None:
        asked.append(wanted)
        build(self, wanted)

    monkeypatch.setattr(Device, "build_ahead", build_ahead)
    feeds = {"x": np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8)}
    results, built = [], []
    own_device.close()
    for _ in range(2):
        with InferenceSession(network("TANH", "NEG")) as session:
            results.append(session.run(None, feeds)[0])
            built.append(session.counters()["pipelines"])
        open_device("auto").close()
    assert asked[0] == []
    assert len(asked[1]) == built[0] == built[1] > 0
    assert np.array_equal(*results)
