"""Kernels broken on purpose: the suite's cases must notice."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest

from vkmnn.runtime.device import DeviceType, enumerate_devices, open_device
from vkmnn.testing.case import variants
from vkmnn.testing.emulation import Bench, bench_for
from vkmnn_suite import mutation
from vkmnn_suite.equivalents import EQUIVALENTS, UNSEEN, Equivalent
from vkmnn_suite.mutation import (
    Fate,
    Judge,
    Mutant,
    caught_part,
    find,
    mutants,
    rendered_source,
    representatives,
    run_mutants,
    sample,
)

# Of different families; of each family one that drivers compile quickly.
KERNELS = (
    "binary_map_4_f32_buffer",
    "conv_tile_pixels_1_1_f32_buffer",
    "gather_1_f32_buffer",
    "matmul_tile_1_4_i32_buffer",
    "softmax_columns_1_f32_buffer",
)
EACH = 12


def changes(text: str) -> list[tuple[str, str]]:
    """Return (change, new line) of every mutant of GLSL that replaces a variant's."""
    rendered = rendered_source(find("unary_map_f32_buffer"))[1]
    lines = tuple(("unary.comp.j2", number) for number, _ in enumerate(text.splitlines(), 1))
    found = mutants(replace(rendered, text=text, lines=lines), "unary_map_f32_buffer")
    return [(mutant.change, mutant.after.strip()) for mutant in found]


def test_operators_constants_and_statements_change() -> None:
    text = "void main()\n{\n    x = min(a, 3u) - b; // a + b\n}\n"
    assert changes(text) == [
        ("statement removed", ";"),
        ("min → max", "x = max(a, 3u) - b; // a + b"),
        ("3u → 4u", "x = min(a, 4u) - b; // a + b"),
        ("3u → 2u", "x = min(a, 2u) - b; // a + b"),
        ("- → +", "x = min(a, 3u) + b; // a + b"),
    ]


@pytest.mark.parametrize(
    ("line", "change"),
    [
        ("if (a < b && !c)", ["< → <=", "&& → ||", "! → nothing"]),
        ("float y = 0.5;", ["0.5 → 1.5"]),
        ("++i;", ["statement removed", "++ → --"]),
        ("y_store(i, v);", ["statement removed"]),
        ("return all(x);", ["all → any"]),
        ("uint k = m & 0x7u;", ["& → |", "0x7u → 8u", "0x7u → 6u"]),
    ],
)
def test_every_kind_of_change(line: str, change: list[str]) -> None:
    assert [what for what, _ in changes(f"void main()\n{{\n    {line}\n}}\n")] == change


def test_declarations_and_dead_functions_stay_as_they_are() -> None:
    text = (
        "layout(local_size_x = 64) in;\nlayout(set = 0) buffer Y\n{\n    uint y[3];\n} pc;\n"
        "#define A (1 + 2)\nfloat dead(float x)\n{\n    return x + alive(x);\n}\n"
        "float alive(float x)\n{\n    return x * x;\n}\n"
        "void main()\n{\n    // 1 + 2\n    y = alive(z);\n}\n"
    )
    assert [what for what, _ in changes(text)] == ["* → /", "statement removed"]


def test_samples_are_the_same_every_time() -> None:
    found = [Mutant(number, "f", number, "a", "b", "c") for number in range(100)]
    assert sample(found, 10) == sample(found, 10)
    assert sample(found, 10) != sample(found, 10, seed=1)
    assert len(sample(found, 10)) == 10
    assert sample(found, 1000) == found


@pytest.mark.parametrize(
    ("pattern", "after", "fits"),
    [
        (r"size \+ 1", "y = load(min(i, size + 1));", True),
        (r"size - 2", "y = load(min(i, size - 1));", False),
        # What the line has anyway says nothing about the change.
        (r"min\(i", "y = load(min(i, size + 1));", False),
        (r"load\(", ";", False),
        (r"load\(.* → ;$", ";", True),
        (r"size - 1\).* → .*size - 0\)", "y = load(min(i, size - 0));", True),
    ],
)
def test_an_equivalent_is_about_what_a_change_brings(pattern: str, after: str, fits: bool) -> None:
    known = Equivalent("a.comp.j2", pattern, "a reason", "a_*")
    before = "y = load(min(i, size - 1));"
    assert known.fits("a_1", "a.comp.j2", before, after) == fits
    assert not known.fits("b_1", "a.comp.j2", before, after)
    assert not known.fits("a_1", "b.comp.j2", before, after)


def test_what_a_cpu_device_cannot_show_is_counted_apart_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    variant = find("nms_gather_buffer")
    found = mutants(rendered_source(variant)[1], variant.name)
    (first, *_) = (mutant for mutant in found if mutant.before.strip() == "barrier();")
    with closing(open_device()) as device:
        if device.info.type is not DeviceType.CPU:
            pytest.skip("not a CPU device")
        judge = Judge(variant, device)
        outcome = judge.judge(first)
        assert outcome.fate is Fate.UNSEEN
        assert caught_part([outcome]) == 1.0
        monkeypatch.setattr(mutation, "is_gpu", lambda _: True)
        assert judge.judge(first).fate is Fate.SURVIVED


@pytest.mark.slow
def test_every_known_equivalent_is_still_a_mutant() -> None:
    """Otherwise the entry is about a line that has changed since."""
    unused = {*EQUIVALENTS, *UNSEEN}
    others = (
        "cast_f32_f16_buffer",
        "cast_f32_i32_buffer",
        "cast_i32_i32_buffer",
        "conv_gather_c8_buffer",
        "matmul_pack_b_f32_buffer",
        "matmul_rotate_16_8_4_f32",
        "matmul_shared_16x16x16_0_4_f32",
        "pool_c8_buffer",
        "pool_index_f32_buffer",
    )
    for variant in [*representatives(), *map(find, (*KERNELS, *others))]:
        for mutant in mutants(rendered_source(variant)[1], variant.name):
            change = (variant.name, mutant.file, mutant.before, mutant.after)
            unused -= {known for known in unused if known.fits(*change)}
    assert not unused


@pytest.mark.slow
def test_representatives_are_what_the_device_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    some = [find("unary_map_f32_buffer"), find("matmul_coop_16x32w16x32k4_128_0_0_1")]
    some += [v for v in variants() if v.template == "softmax_rows"]
    monkeypatch.setattr(mutation, "variants", lambda: some)
    with closing(open_device()) as device:
        chosen = {v.template: v for v in representatives(device)}
        benches = [bench_for(v, device) for v in chosen.values()]
        coop = bench_for(some[1], device)
    assert all(isinstance(bench, Bench) and not bench.emulated for bench in benches)
    assert {"unary", "softmax_rows"} <= set(chosen)
    assert ("matmul_coop" in chosen) == (isinstance(coop, Bench) and not coop.emulated)


@pytest.mark.parametrize("name", [pytest.param(KERNELS[0], marks=pytest.mark.soak), *KERNELS[1:]])
def test_the_suite_notices_broken_kernels(name: str) -> None:
    """Of twelve mutants, the same ones every time, one may survive."""
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    variant = find(name)
    found = list(mutants(rendered_source(variant)[1], variant.name))
    outcomes = run_mutants(variant, sample(found, EACH))
    survivors = [str(mutant) for mutant, fate, _ in outcomes if fate is Fate.SURVIVED]
    assert len(outcomes) == EACH
    assert len(survivors) <= 1, "\n".join(survivors)


def test_a_mutant_that_hangs_or_crashes_is_caught_and_the_rest_still_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    monkeypatch.setattr("vkmnn_suite.mutation.MUTANT_SECONDS", 2.0)
    variant = find("softmax_apply_f32_buffer")  # with few cases
    found = list(mutants(rendered_source(variant)[1], variant.name))
    # Nothing that a kernel can do ends a process for sure: a line that is not there does.
    dies = replace(found[0], number=10**6)
    outcomes = run_mutants(variant, [dies, found[-1]])
    assert outcomes[0].fate is Fate.CAUGHT
    assert outcomes[0].why == "the process died"
    assert outcomes[1].fate in (Fate.CAUGHT, Fate.SURVIVED)
