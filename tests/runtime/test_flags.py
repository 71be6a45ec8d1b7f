"""Flags instead of barriers: modules that wait and signal, and the levels of a command buffer."""

from __future__ import annotations

import shutil
import subprocess
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.runtime.conftest import MakeShader
from vkmnn.runtime import BufferRange, Device, MemoryKind, Shader, open_device
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.flag_line import FlagLine
from vkmnn.runtime.flags import wait_by_flags
from vkmnn.runtime.prune import specialized_spirv
from vkmnn.runtime.recorder import CommandBuffer
from vkmnn.runtime.shader import flagged
from vkmnn.shaders.library import BUILTIN

STRIDE = 256
WORDS = 16
NONE: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def plain() -> Iterator[Device]:
    """A device without the validation layer, which would miss the barriers."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    device = open_device("auto", validation=False).open_again()
    yield device
    device.discard()


@pytest.fixture(scope="module")
def step(make_shader: MakeShader) -> Shader:
    """y[i] = 2 x[i] + 1 for 16 words, in two workgroups; x and y may be the same."""
    return make_shader(
        "step",
        """
        layout(binding = 0) readonly buffer X { uint x[]; };
        layout(binding = 1) writeonly buffer Y { uint y[]; };
        void main() {
            uint i = gl_GlobalInvocationID.x;
            if (i >= 16) return;
            y[i] = 2 * x[i] + 1;
        }
        """,
        "x:r:u32 y:w:u32",
    )


class Chain:
    """A command buffer by flags on a buffer of numbered places."""

    def __init__(self, device: Device, most: int = 64) -> None:
        self.device = device
        self.memory = device.allocate(16 * STRIDE, MemoryKind.DEVICE)
        self.memory.write(0, np.zeros(self.memory.nbytes, np.uint8))
        self.report = device.allocate(16, MemoryKind.READBACK)
        self.report.write(0, np.zeros(16, np.uint8))
        self.line = FlagLine(device, most, BufferRange(self.report, 0, 16))
        self.recorder = device.recorder(flags=self.line)

    def place(self, number: int) -> BufferRange:
        return BufferRange(self.memory, STRIDE * number, 4 * WORDS)

    def step(self, shader: Shader, source: int, target: int) -> None:
        pipeline = self.device.pipeline(shader)
        self.recorder.dispatch(pipeline, [self.place(source), self.place(target)], groups=(3, 1, 1))

    def levels(self) -> list[tuple[bool, int]]:
        return [(level.waits, level.workgroups) for level in self.line._levels]

    def values(self, number: int) -> set[int]:
        return {*self.memory.read(STRIDE * number, 4 * WORDS).view(np.uint32).tolist()}


@pytest.mark.parametrize("levels", [1, 2, 3, 4, 41])
def test_a_chain_gives_the_same_results_in_every_run(
    plain: Device, step: Shader, levels: int
) -> None:
    """Two levels leave it to the command buffer to set counters back, more do so themselves."""
    chain = Chain(plain)
    for _ in range(levels):
        chain.step(flagged(step, NONE), 0, 0)
    assert (chain.line.count, chain.recorder.barrier_count) == (levels - 1, levels - 1)
    commands = chain.recorder.finish()
    assert commands.labels.count("fill") == (levels == 2)
    want = 0
    for _ in range(4):
        commands.run()
        for _ in range(levels):
            want = (2 * want + 1) % 2**32
        assert chain.values(0) == {want}
        assert chain.report.word(0) == 0


def test_flags_order_what_barriers_would(plain: Device, step: Shader) -> None:
    chain, counted = Chain(plain), flagged(step, NONE)
    chain.step(counted, 0, 1)
    chain.step(counted, 0, 2)  # beside it
    chain.step(counted, 1, 0)  # after both: it writes what both read
    assert chain.levels() == [(False, 6), (True, 3)]
    chain.step(step, 3, 4)  # waits for no flag, so for a barrier
    chain.step(counted, 3, 5)  # beside it
    chain.step(counted, 5, 6)  # after a level that does not count all
    chain.step(counted, 6, 7)
    assert chain.levels() == [(False, 6), (True, 3), (False, 3), (False, 3), (True, 3)]
    chain.recorder.copy(chain.place(1), chain.place(8))  # after what flags have ordered
    chain.step(counted, 8, 9)
    chain.recorder.wait_for_all()
    chain.step(counted, 9, 10)
    assert chain.levels()[5:] == [(False, 3), (False, 3)]
    assert chain.line.count == 2
    commands = chain.recorder.finish()
    for _ in range(3):
        commands.run()
        assert chain.values(8) == chain.values(1)
        (before,) = chain.values(9)
        assert chain.values(10) == {2 * before + 1}


def test_fewer_barriers_reach_the_driver(
    plain: Device, step: Shader, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    recorder = type(plain.driver_device.recorder(False))
    barrier = recorder.barrier
    monkeypatch.setattr(
        recorder, "barrier", lambda self, src, dst: (seen.append(dst), barrier(self, src, dst))
    )
    chain = Chain(plain)
    for number in range(5):
        chain.step(flagged(step, NONE), number, number + 1)
    chain.recorder.finish().destroy()
    assert len(seen) == 1  # towards the host


def test_a_wait_in_vain_ends_and_says_so(
    plain: Device, step: Shader, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = FlagLine._target
    monkeypatch.setattr(FlagLine, "_target", lambda self, number: target(self, number) + 1)
    chain = Chain(plain)
    for _ in range(30):
        chain.step(flagged(step, NONE), 0, 0)
    commands: CommandBuffer = chain.recorder.finish()
    commands.run(timeout_s=60)
    assert chain.report.word(0) == 1


# --- modules -------------------------------------------------------------------------------------

HEAD = """
layout(binding = 0) readonly buffer X { uint x[]; };
layout(binding = 1) readonly buffer W { uint w[]; };
layout(binding = 2) writeonly buffer Y { uint y[]; };
shared uint s[8];
uint weight(uint i) { return w[i]; }
uint input_of(uint i) { return x[i]; }
void change(inout uint n) { n += gl_LocalInvocationIndex; }
"""
BODIES = {
    "weights first": ("uint a = w[0]; uint b = weight(1); y[0] = a + b + x[0];", 2),
    "inputs first": ("uint b = x[0]; uint a = w[0]; y[0] = a + b;", 0),
    "a call": ("uint a = w[0]; uint b = input_of(1); y[0] = a + b + w[2];", 1),
    "in a branch": ("uint a = w[0]; if (a > 3) { uint b = w[1]; y[0] = x[b]; }", 1),
    "a return": ("if (gl_LocalInvocationIndex > 3) return; uint a = w[0]; y[0] = a;", 0),
    "a return of the workgroup": (
        "if (gl_WorkGroupID.x >= 4) return; uint a = w[0]; y[0] = a + x[0];",
        1,
    ),
    "a return by a variable": (
        "uint n = gl_WorkGroupID.x; if (w[0] > 3) n = 1; if (n >= 4) return; y[0] = w[1];",
        1,
    ),
    "a return by a part": (
        "uvec2 n = gl_WorkGroupID.xy; n.x = w[0]; if (n.x >= 4) return; y[0] = w[1];",
        1,
    ),
    "a return by a result": (
        "uint n = gl_WorkGroupID.x; change(n); if (n >= 4) return; y[0] = w[1];",
        0,
    ),
    "arms that a workgroup takes": (
        "if (gl_WorkGroupID.x > 3) { uint a = w[0]; y[0] = a + x[0]; } else { y[1] = x[1]; }",
        1,
    ),
    "an arm that goes around": (
        "uint a = w[0]; if (gl_WorkGroupID.x > 3) { a += w[1]; y[0] = a; } y[1] = a + w[2];",
        1,
    ),
    "an arm without accesses": (
        "if (gl_WorkGroupID.x > 3) { s[0] = w[0]; } else { s[1] = w[1] + x[0]; } y[1] = w[2];",
        2,
    ),
    "a loop": ("uint a = w[0]; for (uint i = 0; i < a; ++i) y[i] = w[i] + x[i];", 1),
    "after a loop": (
        "uint a = w[0]; for (uint i = 0; i < 9; ++i) a += w[i]; barrier(); y[0] = a + x[0];",
        2,
    ),
    "nothing shared": ("uint a = w[0]; s[0] = a;", 1),
}
"""Bodies of main, and the loads of weights before the wait."""


@pytest.mark.parametrize("name", BODIES)
def test_weights_are_asked_for_before_the_wait(make_shader: MakeShader, name: str) -> None:
    body, want = BODIES[name]
    shader = make_shader(name, f"{HEAD} void main() {{ {body} }}", "x:r:u32 w:r:u32 y:w:u32")
    words = array("I", specialized_spirv(flagged(shader, frozenset({1})), {}))
    instructions, at = [], 5
    while at < len(words):
        instructions.append(words[at : at + (words[at] >> 16)].tolist())
        at += words[at] >> 16
    named = {one[1]: one[3] for one in instructions if one[0] & 0xFFFF == 71 and one[2] == 33}
    (weights,) = (variable for variable, binding in named.items() if binding == 1)
    bodies: dict[int, list[list[int]]] = {}
    for one in instructions:
        if one[0] & 0xFFFF == 54:
            bodies[one[2]] = body_of = []
        elif bodies:
            body_of.append(one)
    # The wait is the function that polls; `weight` is one that loads.
    (wait,) = (number for number, code in bodies.items() if any(c[0] & 0xFFFF == 227 for c in code))
    loads = {n for n, code in bodies.items() if any(weights in c[1:] for c in code)} | {weights}
    (main,) = (
        code for code in bodies.values() if any(c[0] & 0xFFFF == 57 and wait in c for c in code)
    )
    before = main[: max(i for i, c in enumerate(main) if c[0] & 0xFFFF == 57 and wait in c)]
    assert sum(not loads.isdisjoint(c[3:4]) for c in before) == want


@pytest.mark.parametrize(
    "name",
    [
        *("elementwise_4_1_f32_buffer", "matmul_codes_4_1_0_f32", "softmax_rows_16_1_f32"),
        *("conv_depthwise_4_f16_texel", "cum_sum_f32_buffer", "one_hot_i32_buffer"),
    ],
)
def test_modules_are_valid(name: str, tmp_path: Path) -> None:
    """With nothing but shared bindings, and with constants."""
    tool = shutil.which("spirv-val")
    if tool is None:
        pytest.skip("needs spirv-val")
    shader = BUILTIN.load(name)
    for constants in (NONE, frozenset({1, 2})):
        path = tmp_path / "module.spv"
        path.write_bytes(wait_by_flags(shader.spirv(), len(shader.bindings), constants))
        done = subprocess.run(
            [tool, "--target-env", "vulkan1.1", path], capture_output=True, text=True, check=False
        )
        assert not done.returncode, done.stderr


@pytest.mark.parametrize("name", ["matmul_coop_128x128w64x32k1_32_0_0_1", "softmax_rows_16_1_f32"])
def test_accesses_take_part_in_the_order_between_workgroups(name: str) -> None:
    """By the memory model of Vulkan each says so itself, by that of GLSL their variable does."""
    shader = BUILTIN.load(name)
    by_model = "vulkan_memory_model" in shader.requires
    words = array("I", wait_by_flags(shader.spirv(), len(shader.bindings), frozenset({1})))
    at, variables, coherent, pointers = 5, {}, set(), {}
    private = public = 0
    while at < len(words):
        number, operands = words[at] & 0xFFFF, words[at + 1 : at + (words[at] >> 16)].tolist()
        at += words[at] >> 16
        if number == 71 and operands[1] == 33:
            variables[operands[0]] = operands[2]
        elif number == 71 and operands[1:] == [23]:
            coherent.add(variables.get(operands[0], operands[0]))
        elif number == 65 and operands[2] in variables:
            pointers[operands[1]] = variables[operands[2]]
        elif number in (61, 4457) and operands[2] in pointers:
            mask = operands[3:] if number == 61 else operands[5:]
            flag = bool(mask and mask[0] & 0x20)
            if pointers[operands[2]] not in (1, len(shader.bindings), len(shader.bindings) + 1):
                assert flag == by_model
                public += flag
            private += not flag
    assert bool(coherent) == (not by_model)
    assert (public > 0) == by_model
    assert private > 0


def test_a_shader_that_waits_is_another_shader(step: Shader) -> None:
    assert len({step, flagged(step, NONE), flagged(step, frozenset({0}))}) == 3
