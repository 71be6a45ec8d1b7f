"""Switches over specialization constants: one case is left, and it is the right one."""

from __future__ import annotations

import shutil
import subprocess
from array import array
from pathlib import Path

import numpy as np
import pytest

from tests.unit.runtime.conftest import MakeShader
from vkmnn.runtime import BufferRange, Device, MemoryKind, Shader, SpecConstant
from vkmnn.runtime.prune import prune_switches
from vkmnn.shaders.library import BUILTIN

OP_SWITCH = 251
SOURCE = """
layout(constant_id = 3) const int n = 1;
layout(constant_id = 4) const uint m = 7;
layout(binding = 0) buffer Y { uint y[]; };
uint chosen(uint x)
{
    switch (n)
    {
    case -1:
        return 10 * x;
    case 2:
    case 4:
        x += 20;
    case 5:
        return x + 1;
    default:
        break;
    }
    return 3 * x;
}
void main()
{
    uint sum = 0;
    switch (m)
    {
    case 4000000000u:
        sum = 1000;
        break;
    case 7:
        sum = 2000;
    }
    switch (y[0])  // not a constant: to be left alone
    {
    case 5:
        sum += 1;
    }
    y[1] = chosen(y[0]) + sum;
}
"""


def switches(code: bytes) -> list[int]:
    """Return the lengths of a module's switches."""
    words, at, found = array("I", code), 5, []
    while at < len(words):
        if words[at] & 0xFFFF == OP_SWITCH:
            found.append(words[at] >> 16)
        at += words[at] >> 16
    assert at == len(words)
    return found


@pytest.mark.parametrize("m", [7, 4_000_000_000, 0])
@pytest.mark.parametrize("n", [-1, 1, 2, 4, 5, -(2**31), 2**31 - 1])
def test_the_chosen_case_runs(device: Device, make_shader: MakeShader, n: int, m: int) -> None:
    shader = make_shader(
        "cases",
        SOURCE,
        "y:rw:i32",
        local=(1, 1, 1),
        spec=(SpecConstant("n", 3, "int", 1), SpecConstant("m", 4, "uint", 7)),
    )
    assert sorted(switches(shader.spirv())) == [5, 7, 11]
    assert sorted(switches(prune_switches(shader.spirv(), {3: n, 4: m}))) == [3, 3, 5]
    value = {-1: 50, 2: 26, 4: 26, 5: 6}.get(n, 15)
    want = value + {7: 2000, 4_000_000_000: 1000}.get(m, 0) + 1
    with device.allocate(256, MemoryKind.UPLOAD) as memory:
        memory.write(0, np.array([5, 0], np.uint32))
        recorder = device.recorder()
        recorder.dispatch(device.pipeline(shader, {"n": n, "m": m}), [BufferRange(memory, 0, 256)])
        with recorder.finish() as commands:
            commands.run()
        assert memory.read(0, 8).view(np.uint32).tolist() == [5, want]


def test_every_driver_gets_the_pruned_module(
    device: Device, make_shader: MakeShader, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bytes] = []

    class Nothing:
        """Stands in for the driver's pipeline."""

    def create_pipeline(shader: Shader, code: bytes, spec: object) -> Nothing:
        given.append(code)
        return Nothing()

    monkeypatch.setattr(device.driver_device, "create_pipeline", create_pipeline)
    spec = (SpecConstant("n", 3, "int", 1), SpecConstant("m", 4, "uint", 7))
    shader = make_shader("given", SOURCE, "y:rw:i32", local=(1, 1, 1), spec=spec)
    device.pipeline(shader, {"n": 5, "m": 7})
    assert given == [prune_switches(shader.spirv(), {3: 5, 4: 7})]
    assert given != [shader.spirv()]


def with_activations() -> list[Shader]:
    """Return a built-in kernel of every template that chooses among all activations."""
    found: dict[str, Shader] = {}
    for name, template, _ in BUILTIN.variants():
        if template not in found:
            shader = BUILTIN.load(name)
            if any(constant.name == "ACTIVATION" for constant in shader.spec_constants):
                found[template] = shader
    assert len(found) > 5
    return list(found.values())


def test_built_in_kernels_lose_the_other_activations() -> None:
    for shader in with_activations():
        code = shader.spirv()
        assert max(switches(code)) > 20
        assert prune_switches(code, {}) == code
        (number,) = (c.id for c in shader.spec_constants if c.name == "ACTIVATION")
        left = switches(prune_switches(code, {number: 6}))
        assert len(left) == len(switches(code))
        assert sum(switches(code)) - sum(left) > 20


@pytest.mark.skipif(shutil.which("spirv-val") is None, reason="spirv-val is not installed")
@pytest.mark.parametrize("value", [0, 6, 99])
def test_what_is_left_is_valid(value: int, tmp_path: Path) -> None:
    path = tmp_path / "pruned.spv"
    for shader in with_activations():
        if "cooperative_matrix" in shader.requires:  # spirv-val may be older than these
            continue
        numbers = {c.id: value for c in shader.spec_constants if c.name == "ACTIVATION"}
        path.write_bytes(prune_switches(shader.spirv(), numbers))
        target = ["--target-env", "vulkan1.3"]
        made = subprocess.run(["spirv-val", *target, path], capture_output=True, text=True)
        assert made.returncode == 0, f"{shader.name}: {made.stdout}{made.stderr}"
