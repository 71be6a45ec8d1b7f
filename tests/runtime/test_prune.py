"""Branches over specialization constants: one target remains, and it is the right one."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.conftest import MakeShader
from vkmnn.runtime import BufferRange, Device, MemoryKind, Shader, SpecConstant
from vkmnn.runtime.prune import prune_branches
from vkmnn.shaders.library import BUILTIN

OP_BRANCH, OP_SWITCH = 250, 251
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


CONDITIONS = """
layout(constant_id = 3) const bool b = false;
layout(constant_id = 4) const uint m = 7;
layout(binding = 0) buffer Y { uint y[]; };
void main()
{
    uint sum = 0;
    if (b && y[0] > 3)  // a value that depends on which block was left
        sum += 1;
    if (m > 4 && !b || m == 2)
        sum += 10;
    else
        sum += 20;
    do
        sum += 100;
    while (m == 2 && sum < 250);
    if (m <= y[0])  // not a constant: to be left alone
        sum += 1000;
    y[1] = sum;
}
"""


def instructions(code: bytes, wanted: int) -> list[list[int]]:
    """Return the words of a module's instructions of one kind."""
    words, at, found = array("I", code), 5, []
    while at < len(words):
        length = words[at] >> 16
        if words[at] & 0xFFFF == wanted:
            found.append(words[at : at + length].tolist())
        at += length
    assert at == len(words)
    return found


def switches(code: bytes) -> list[int]:
    """Return the lengths of a module's switches."""
    return [len(words) for words in instructions(code, OP_SWITCH)]


def run(device: Device, shader: Shader, spec: dict[str, int], given: int) -> list[int]:
    """Return the two numbers that a kernel writes, the first of which was given."""
    with device.allocate(256, MemoryKind.UPLOAD) as memory:
        memory.write(0, np.array([given, 0], np.uint32))
        recorder = device.recorder()
        recorder.dispatch(device.pipeline(shader, spec), [BufferRange(memory, 0, 256)])
        with recorder.finish() as commands:
            commands.run()
        found: list[int] = memory.read(0, 8).view(np.uint32).tolist()
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
    assert sorted(switches(prune_branches(shader.spirv(), {3: n, 4: m}))) == [3, 3, 5]
    value = {-1: 50, 2: 26, 4: 26, 5: 6}.get(n, 15)
    want = value + {7: 2000, 4_000_000_000: 1000}.get(m, 0) + 1
    assert run(device, shader, {"n": n, "m": m}, 5) == [5, want]


@pytest.mark.parametrize("optimised", [False, True])
@pytest.mark.parametrize("m", [2, 4, 7])
@pytest.mark.parametrize("b", [False, True])
def test_the_chosen_branch_runs(
    device: Device, make_shader: MakeShader, tmp_path: Path, b: bool, m: int, optimised: bool
) -> None:
    spec = (SpecConstant("b", 3, "bool", False), SpecConstant("m", 4, "uint", 7))
    shader = make_shader("conditions", CONDITIONS, "y:rw:i32", local=(1, 1, 1), spec=spec)
    if optimised:
        if shutil.which("spirv-opt") is None:
            pytest.skip("spirv-opt is not installed")
        plain, better = tmp_path / "plain.spv", tmp_path / "better.spv"
        plain.write_bytes(shader.spirv())
        subprocess.run(["spirv-opt", "-O", plain, "-o", better], check=True)
        code = better.read_bytes()
        shader = replace(shader, spirv=lambda: code, digest=hashlib.sha256(code).hexdigest())
    pruned = prune_branches(shader.spirv(), {3: b, 4: m})
    before = instructions(shader.spirv(), OP_BRANCH)
    assert len(instructions(pruned, OP_BRANCH)) < len(before)
    for given in (3, 5, 9):
        sums = (b and given > 3) + (10 if (m > 4 and not b) or m == 2 else 20)
        sums += 100 * (3 if m == 2 else 1) + 1000 * (m <= given)
        assert run(device, shader, {"b": b, "m": m}, given) == [given, sums]


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
    assert given == [prune_branches(shader.spirv(), {3: 5, 4: 7})]
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
        assert prune_branches(code, {}) == code
        (number,) = (c.id for c in shader.spec_constants if c.name == "ACTIVATION")
        left = switches(prune_branches(code, {number: 6}))
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
        numbers |= {c.id: value % 2 for c in shader.spec_constants if c.type == "bool"}
        path.write_bytes(prune_branches(shader.spirv(), numbers))
        target = ["--target-env", "vulkan1.3"]
        made = subprocess.run(["spirv-val", *target, path], capture_output=True, text=True)
        assert made.returncode == 0, f"{shader.name}: {made.stdout}{made.stderr}"
