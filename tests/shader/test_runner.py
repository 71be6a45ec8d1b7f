"""The runner of the kernel tests: what it must detect, and what it must not do silently."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pytest

from vkmnn.codegen.compilers import find_compiler
from vkmnn.codegen.features import target_for
from vkmnn.ir import Array
from vkmnn.ir.ops import BinaryAttrs, CastAttrs, ConvolutionAttrs, DType, UnaryAttrs
from vkmnn.runtime.device import Device, enumerate_devices, open_device
from vkmnn.runtime.shader import Shader
from vkmnn.testing.case import Case, Variant, op_case
from vkmnn.testing.runner import (
    Picker,
    Picks,
    dispatched_by,
    pipelines_of,
    reach,
    run_case,
)
from vkmnn.testing.thinning import thinned
from vkmnn_suite.mutation import find, rendered_source


@pytest.fixture
def device() -> Device:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    return open_device("auto", validation=True)


def broken(name: str, old: str, new: str) -> dict[str, Shader]:
    """Return a variant with one piece of its GLSL replaced, by name."""
    variant = find(name)
    source, rendered = rendered_source(variant)
    assert rendered.text.count(old) == 1, old
    text = rendered.text.replace(old, new)
    spirv = find_compiler().compile(text, target_for(source.requires), "none").spirv
    shader = variant.library.load(name)
    return {name: replace(shader, digest=sha256(spirv).hexdigest(), spirv=lambda: spirv)}


def case_and_picks(name: str, case: Case, device: Device) -> dict[str, int]:
    """Return choices with which a case dispatches a variant."""
    for load in range(2):
        picks = {"load": load}
        if name in dispatched_by(case, device, Picker(picks)):
            return picks
    raise AssertionError(f"{name} is not dispatched")


def run_broken(name: str, old: str, new: str, case: Case, device: Device) -> None:
    picks = case_and_picks(name, case, device)
    run_case(case, device, picks)
    run_case(case, device, picks, broken(name, old, new))


ABS = op_case("UnaryOp", UnaryAttrs("ABS"), [np.linspace(-3, 4, 7, dtype=np.float32)])


def test_wrong_values_are_noticed(device: Device) -> None:
    with pytest.raises(AssertionError, match="Not equal"):
        run_broken("unary_map_f32_buffer", "return abs(x);", "return x;", ABS, device)


def test_a_write_past_a_tensor_is_noticed(device: Device) -> None:
    with pytest.raises(AssertionError, match="'out0' has 8 words, and word 8 was written"):
        run_broken("unary_map_f32_buffer", "i >= pc.", "i > pc.", ABS, device)


def test_what_is_not_written_is_poison(device: Device) -> None:
    zeros = op_case("UnaryOp", UnaryAttrs("ABS"), [np.zeros(7, np.float32)])
    with pytest.raises(AssertionError, match="nan"):
        run_broken("unary_map_f32_buffer", "i >= pc.", "i + 1u >= pc.", zeros, device)


def test_lanes_past_the_last_channel_must_be_zero(device: Device) -> None:
    x = np.ones((1, 5, 3), np.float32)
    attrs = ConvolutionAttrs((1,), (1,), (1,), (0, 0), 5)
    inputs: list[Array | None] = [x, np.ones((5, 1, 1), np.float32), np.ones(5, np.float32)]
    case = op_case("Convolution", attrs, inputs, constant=[1, 2])
    name = next(
        name
        for name in dispatched_by(case, device, Picker({"load": 0, "convolution": 0}))
        if name.startswith("conv_")
    )
    with pytest.raises(AssertionError, match="lanes past the last channel"):
        run_case(
            case,
            device,
            {},
            broken(
                name, "mix(vec4(0.0), activate_with(sum, residual), lanes.live)", "activate(sum)"
            ),
        )


def test_grids_are_folded(device: Device) -> None:
    case = op_case("UnaryOp", UnaryAttrs("ABS"), [np.ones(1021, np.float32)])
    fold = "+ gl_GlobalInvocationID.y * gl_NumWorkGroups.x * gl_WorkGroupSize.x"
    with pytest.raises(AssertionError, match="nan"):
        run_broken("unary_map_f32_buffer", fold, "", case, device)


def test_a_refusal_must_come_and_say_the_right_thing(device: Device) -> None:
    attrs = BinaryAttrs("ADD")
    large, one = np.full(3, 2**31 - 1, np.int64), np.ones(3, np.int64)
    message = "does not fit the 32-bit integers"
    run_case(op_case("BinaryOp", attrs, [large, one], raises=message), device, {})
    with pytest.raises(AssertionError, match="was to be said, but nothing"):
        run_case(op_case("BinaryOp", attrs, [one, one], raises=message), device, {})
    with pytest.raises(AssertionError, match="'index' was to be said"):
        run_case(op_case("BinaryOp", attrs, [large, one], raises="index"), device, {})


def test_a_case_that_falls_back_is_an_error(device: Device) -> None:
    case = op_case("Cast", CastAttrs(DType.FLOAT32), [np.ones(3, np.float64)])
    with pytest.raises(AssertionError, match="off the device"):
        run_case(case, device, {})


def test_a_variant_that_no_case_reaches_is_an_error(device: Device) -> None:
    variant = find("unary_map_f32_buffer")
    other = Variant("unary_test_f32_buffer", variant.template, variant.axes, variant.library)
    with pytest.raises(AssertionError, match="no case reaches unary_test_f32_buffer"):
        reach(other, device)


def test_a_template_without_cases_is_an_error(device: Device) -> None:
    variant = find("unary_map_f32_buffer")
    with pytest.raises(AssertionError, match="no cases for nothing"):
        reach(replace(variant, template="nothing"), device)


def test_few_pipelines_run_some_of_the_cases_and_all_between_the_variants(device: Device) -> None:
    """Variants of a kernel take different cases, each at least one that reaches it."""
    ran, everything = set[object](), set[object]()
    for name in KINDS:
        variant = find(name)
        cases = reach(variant, device)
        few = thinned(cases, variant, device, 2)
        assert few
        assert len(few) < len(cases)
        assert [case for case in cases if case in few] == few
        assert 1 <= len(own_pipelines(few, name, device)) <= 2
        ran |= own_pipelines(few, name, device)
        own = own_pipelines(cases, name, device)
        everything |= own
        assert own_pipelines(thinned(cases, variant, device, 1000), name, device) == own
    assert len(ran) > 2
    assert len(everything) > len(ran)


KINDS = tuple(
    f"norm_rows_8_{kind}_{element}"
    for kind in ("aligned", "channels")
    for element in ("f16", "f32")
)


def own_pipelines(
    cases: Sequence[tuple[Case, Picks]], name: str, device: Device
) -> set[tuple[tuple[str, object], ...]]:
    """Return the constants of the pipelines that cases need of a variant."""
    needed = (pipelines_of(case, device, Picker(picks, case.takes)) for case, picks in cases)
    return {spec for some in needed for shader, _, spec in some if shader == name}
