"""Emulation of missing features: rendered code, running it, and refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vkmnn.codegen.emulation import compile_emulated, emulate
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.codegen.variants import expand, load_entries
from vkmnn.errors import ShaderError
from vkmnn.ir.ops import SoftmaxAttrs
from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.shaders.library import BUILTIN
from vkmnn.testing import emulation
from vkmnn.testing.case import Variant, op_case
from vkmnn.testing.emulation import Bench, bench_for, stand_in
from vkmnn.testing.runner import run_case
from vkmnn.vulkan.gemm.coop_tiles import matrix_of
from vkmnn.vulkan.rows.reduction import RowGroup

GLSL = BUILTIN.folder / "glsl"


def variant(name: str) -> Variant:
    template, axes = next((t, a) for n, t, a in BUILTIN.variants() if n == name)
    return Variant(name, template, axes, BUILTIN)


@pytest.fixture
def device() -> Device:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    return open_device("auto", validation=True)


def without(device: Device, size: int) -> bool:
    smallest, largest = device.info.limits.subgroup_size_range
    return not smallest <= size <= largest


def test_what_is_rendered_has_no_subgroups_and_keeps_its_places() -> None:
    found = next(
        v for v in expand(load_entries(GLSL, frozenset(["softmax_rows"]))) if v.axes["lanes"] == 32
    )
    rendered = Renderer(GLSL).render(found)
    emulated = emulate(rendered)
    assert "GL_KHR_shader_subgroup" in rendered.text
    assert "GL_KHR_shader_subgroup" not in emulated.text
    assert emulated.declared.subgroup_size == 0
    lines = emulated.text.splitlines()
    assert len(emulated.lines) == len(lines)
    main = lines.index("void main()")
    assert emulated.lines[main] == rendered.lines[rendered.text.splitlines().index("void main()")]


@pytest.mark.parametrize("name", ["softmax_rows_32_1_f32", "arg_reduce_f32_32_buffer"])
def test_an_emulated_kernel_needs_no_feature(name: str) -> None:
    entry, spirv = compile_emulated(GLSL, variant(name).template, name)
    assert entry["requires"] == []
    assert entry["subgroup_size"] == 0
    assert not any("GroupNonUniform" in capability for capability in entry["capabilities"])
    assert BUILTIN.load(name).subgroup_size == 32
    assert spirv != BUILTIN.load(name).spirv()


@pytest.mark.parametrize("size", [5, 64, 1021])
def test_a_kernel_of_other_subgroups_computes_what_numpy_computes(
    device: Device, size: int
) -> None:
    if not without(device, 32):
        pytest.skip("the device has subgroups of 32")
    wanted = variant("softmax_rows_32_1_f32" if size % 4 else "softmax_rows_32_4_f32")
    bench = bench_for(wanted, device)
    assert isinstance(bench, Bench)
    assert bench.emulated
    x = np.random.default_rng(0).standard_normal((3, size)).astype(np.float32)
    case = op_case("Softmax", SoftmaxAttrs(), [x], rtol=3e-6, atol=1e-9)
    case = replace(case, takes={"softmax": "rows", "row group": RowGroup(32, 64)})
    result = run_case(case, bench.device, {})
    assert wanted.name in result.dispatched


def test_what_the_device_can_run_is_not_emulated(device: Device) -> None:
    bench = bench_for(variant("softmax_rows_0_1_f32"), device)
    assert bench == Bench(device, False)


def test_without_a_template_the_reason_says_so(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not without(device, 32):
        pytest.skip("the device has subgroups of 32")

    def refuse(library: object, name: str) -> None:
        raise ShaderError(f"{name} cannot be emulated: jinja2 is not installed")

    monkeypatch.setattr(emulation, "stand_in", refuse)
    reason = bench_for(variant("softmax_rows_32_1_f32"), device)
    assert isinstance(reason, str)
    assert "needs subgroups of 32" in reason
    assert "jinja2 is not installed" in reason


def test_stand_ins_are_compiled_once() -> None:
    assert stand_in(BUILTIN, "softmax_rows_32_4_f32") is stand_in(BUILTIN, "softmax_rows_32_4_f32")


# --- cooperative matrices -------------------------------------------------------------------------


def rendered_matmul(name: str = "matmul_coop_64x32w32x32k4_128_0_0_4") -> Rendered:
    (found,) = (v for v in expand(load_entries(GLSL, frozenset(["matmul_coop"]))) if v.name == name)
    return Renderer(GLSL).render(found, emulated=True)


def test_matrices_become_structures_and_keep_their_places() -> None:
    rendered = rendered_matmul()
    emulated = emulate(rendered)
    assert "coopmat<" in rendered.text
    assert "coopmat<" not in emulated.text
    assert "cooperative_matrix" not in emulated.text
    assert len(emulated.lines) == len(emulated.text.splitlines())
    product = next(line for line in emulated.text.splitlines() if "= coopMatMulAdd(" in line)
    number = emulated.text.splitlines().index(product)
    original = rendered.text.splitlines().index(product)
    assert emulated.lines[number] == rendered.lines[original]


@pytest.mark.soak
@pytest.mark.elsewhere("kernel variants")
def test_what_emulates_matrices_fits_devices_without_them() -> None:
    for name, template in ((n, t) for n, t, _ in BUILTIN.variants() if t.endswith("_coop")):
        entry, _ = compile_emulated(GLSL, template, name)
        floats = "codes" in template or "l2" in name.split("_")[2]
        assert entry["requires"] == ([] if floats else ["storage16"])
        # Tiles for subgroups of 64 take as many subgroups as those for 32.
        assert entry["local_size"][0] <= (512 if "s64" in name else 256)
        assert entry["local_size"] == list(BUILTIN.load(name).local_size)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gl_CooperativeMatrixLayoutRowMajor", "gl_CooperativeMatrixLayoutColumnMajor"),
        ("coopMatLoad(left0, staged,", "coopMatLoad(left0, b_data,"),
    ],
)
def test_other_layouts_and_memory_are_refused(old: str, new: str) -> None:
    rendered = rendered_matmul()
    changed = replace(rendered, text=rendered.text.replace(old, new))
    with pytest.raises(ShaderError, match=r"coopMatLoad\(left0.*cannot be emulated"):
        emulate(changed)


def test_a_device_with_emulated_matrices_seems_to_have_them(device: Device) -> None:
    bench = bench_for(variant("conv_coop_16x32w16x32k4_128_1"), device)
    if isinstance(bench, str):
        pytest.skip(bench)
    assert matrix_of(bench.device.info) is not None
    large = {(16, 16, 16)} & {(s.m, s.n, s.k) for s in device.info.cooperative_matrices}
    assert bool(large) != bench.emulated
