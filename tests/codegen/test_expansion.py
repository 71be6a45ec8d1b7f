"""Properties of macro.json → variants that hold for any entry, through the file."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from tests.codegen.conftest import Project
from vkmnn.codegen import places
from vkmnn.codegen.failures import failures_of
from vkmnn.codegen.features import FEATURES, default_optimize, target_for, with_implied
from vkmnn.codegen.variants import Variant, expand, load_entries
from vkmnn.errors import ShaderError

SCHEMA = Path(places.__file__).with_name("macro.schema.json")
IN_ONE_FOLDER = settings(  # a slow machine is not a failure of the generator
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

Entry = dict[str, Any]

VALUES = st.from_regex(r"[A-Z][A-Z0-9]{0,3}", fullmatch=True) | st.integers(0, 40)
AXES = st.dictionaries(
    st.sampled_from(["op", "dtype", "width", "storage"]),
    st.lists(VALUES, min_size=1, max_size=3, unique_by=lambda v: str(v).lower()),
    max_size=3,
)
NAMES = st.sampled_from(sorted(FEATURES))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    axes: dict[str, list[str | int]] = draw(AXES)
    entry: Entry = {"axes": axes} if axes or draw(st.booleans()) else {}

    def pairs() -> list[tuple[str, str | int]]:
        chosen = draw(st.lists(st.sampled_from(sorted(axes)), unique=True)) if axes else []
        return [(axis, draw(st.sampled_from(axes[axis]))) for axis in chosen]

    def condition() -> str:
        return ",".join(f"{axis}={value}" for axis, value in pairs()) or "*"

    if draw(st.booleans()):
        rules = [dict(pairs()) for _ in range(draw(st.integers(0, 2)))]
        entry["exclude"] = [rule for rule in rules if rule]
    if draw(st.booleans()):
        features = st.lists(NAMES, max_size=3, unique=True)
        entry["requires"] = {condition(): draw(features) for _ in range(draw(st.integers(0, 3)))}
    if draw(st.booleans()):
        policies = st.sampled_from(["-O", "-Os", "none"])
        entry["optimize"] = {condition(): draw(policies) for _ in range(draw(st.integers(0, 3)))}
    if draw(st.booleans()):
        entry["spec"] = draw(st.dictionaries(st.sampled_from(["TILE", "FLIP"]), st.integers(0, 9)))
    return entry


def read(project: Project, macro: dict[str, object]) -> list[Variant]:
    for name in macro:
        project.write(name, "")
    project.macro(macro)
    return expand(load_entries(project.glsl, frozenset(n.removesuffix(".comp.j2") for n in macro)))


def holds(condition: str, axes: dict[str, Any]) -> bool:
    wanted = [] if condition == "*" else [pair.split("=") for pair in condition.split(",")]
    return all(str(axes[axis]) == value for axis, value in wanted)


@IN_ONE_FOLDER
@given(entry=entries())
def test_variants_are_what_the_words_say(bare: Project, entry: Entry) -> None:
    try:
        variants = read(bare, {"t.comp.j2": entry})
    except ShaderError:
        assume(False)
    axes = entry.get("axes", {})
    expected = []
    for values in itertools.product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        rules = entry.get("exclude", [])
        if not any(all(point[axis] == value for axis, value in rule.items()) for rule in rules):
            expected.append(point)
    assert sorted((v.axes for v in variants), key=str) == sorted(expected, key=str)
    assert [v.name for v in variants] == sorted({v.name for v in variants})
    for variant in variants:
        assert variant.name.isidentifier()
        requires = entry.get("requires", {}).items()
        needs = {name for text, names in requires if holds(text, variant.axes) for name in names}
        assert variant.requires == with_implied(frozenset(needs))
        policies = entry.get("optimize", {}).items()
        matching = [policy for text, policy in policies if holds(text, variant.axes)]
        assert variant.optimize == [default_optimize(variant.requires), *matching][-1]
        # No requirement asks for a lower target than another.
        assert all(
            target_for(frozenset([name])).spirv <= target_for(variant.requires).spirv
            for name in variant.requires
        )


@IN_ONE_FOLDER
@given(first=entries(), second=entries(), exchange=st.booleans())
def test_order_does_not_matter(bare: Project, first: Entry, second: Entry, exchange: bool) -> None:
    macro: dict[str, object] = {"a.comp.j2": first, "b.comp.j2": second}
    turned = dict(reversed(macro.items())) if exchange else macro
    # The order of axes matters, as it determines the names; the rest may come in any order.
    turned = {file: dict(sorted(entry.items())) for file, entry in turned.items()}  # type: ignore[attr-defined]
    try:
        variants = read(bare, macro)
    except ShaderError:
        with pytest.raises(ShaderError):
            read(bare, turned)
        return
    again = read(bare, turned)
    assert [(v.name, v.axes, v.requires, v.optimize) for v in again] == [
        (v.name, v.axes, v.requires, v.optimize) for v in variants
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 9) | st.sampled_from(["f32", "-O", "int8", "a-b"]),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["axes", "exclude", "op", "requires", "op=A", "spec", "macro", "*"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)


@IN_ONE_FOLDER
@given(entry=entries() | JSON)
def test_what_the_reader_takes_the_schema_takes(bare: Project, entry: object) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    errors: list[ShaderError] = []
    try:
        read(bare, {"t.comp.j2": entry})
    except ShaderError as error:
        errors = failures_of(error)
    assert all(error.line is not None for error in errors)
    assert errors or validator.is_valid({"t.comp.j2": entry}), entry
