from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.codegen.conftest import Project
from vkmnn.base.elements import FLOATS
from vkmnn.codegen.failures import BuildFailedError
from vkmnn.codegen.variants import TemplateEntry, expand, load_entries
from vkmnn.errors import ShaderError

WORDS = st.from_regex(r"[A-Z][A-Z0-9]{0,4}", fullmatch=True)
AXES = st.dictionaries(
    st.sampled_from(["op", "dtype", "width", "storage"]),
    st.lists(
        WORDS | st.integers(0, 99), min_size=1, max_size=4, unique_by=lambda v: str(v).lower()
    ),
    max_size=3,
)


@given(AXES, st.data())
def test_expansion_is_the_product_without_the_exclusions(
    axes: dict[str, list[str | int]], data: st.DataObject
) -> None:
    rules = data.draw(
        st.lists(
            st.dictionaries(
                st.sampled_from(sorted(axes)), st.just(()), min_size=1, max_size=len(axes)
            ),
            max_size=2,
        )
        if axes
        else st.just([])
    )
    exclude = tuple(
        {axis: tuple(data.draw(st.lists(st.sampled_from(axes[axis]), min_size=1))) for axis in rule}
        for rule in rules
    )
    entry = TemplateEntry(
        "t", "t.comp.j2", 1, {k: tuple(v) for k, v in axes.items()}, exclude=exclude
    )
    expected = [
        values
        for values in itertools.product(*axes.values())
        if not any(
            all(values[list(axes).index(axis)] in taken for axis, taken in rule.items())
            for rule in exclude
        )
    ]
    if not expected:
        with pytest.raises(ShaderError, match="leave no variant"):
            entry.variants()
        return
    variants = entry.variants()
    assert [tuple(v.axes.values()) for v in variants] == expected
    assert len({v.name for v in variants}) == len(variants)
    for variant in variants:
        assert variant.name == "_".join(["t", *(str(x).lower() for x in variant.axes.values())])


def test_axes_that_vary_together(bare: Project) -> None:
    rows = [["8x8", 64, 0], ["8x8", 64, 1], ["4x4", 32, 0]]
    bare.write("gemm.comp.j2", "")
    axes = {"kind": ["a", "b"], "tile,step, split": rows, "aligned": [4, 1]}
    bare.macro({"gemm.comp.j2": {"axes": axes, "exclude": [{"split": 1, "aligned": 1}]}})
    (entry,) = load_entries(bare.glsl)
    assert list(entry.axes) == ["kind", "tile", "step", "split", "aligned"]
    assert (entry.axes["tile"], entry.axes["step"]) == (("8x8", "4x4"), (64, 32))
    assert [tuple(variant.axes.values()) for variant in entry.variants()] == [
        (kind, *row, aligned)
        for kind in "ab"
        for row in rows
        for aligned in (4, 1)
        if (row[2], aligned) != (1, 1)
    ]


def test_conditions_choose_features_and_optimisation(bare: Project) -> None:
    bare.write("gemm.comp.j2", "")
    bare.macro(
        {
            "gemm.comp.j2": {
                "axes": {"dtype": ["f32", "f16"], "kind": ["tile", "coop"]},
                "requires": {
                    "dtype=f16": ["storage16"],
                    "dtype=f16,kind=coop": ["float16"],
                    "kind=coop": ["cooperative_matrix", "vulkan_memory_model"],
                },
                "optimize": {"dtype=f32,kind=tile": "-Os"},
            }
        }
    )
    found = {variant.name: variant for variant in expand(load_entries(bare.glsl))}
    assert found["gemm_f32_tile"].requires == frozenset()
    assert found["gemm_f16_tile"].requires == {"storage16"}
    assert found["gemm_f16_coop"].requires == {
        *("storage16", "float16", "cooperative_matrix", "vulkan_memory_model"),
        *("spirv_1_6", "maintenance4"),
    }
    assert found["gemm_f32_tile"].optimize == "-Os"
    assert found["gemm_f16_tile"].optimize == "-O"
    assert found["gemm_f16_coop"].optimize == "none"


@pytest.mark.parametrize(
    ("entry", "names"),
    [
        (["RELU6"], ["r_base", "r_relu6"]),
        ({"macro": ["A", "B"]}, ["r_a", "r_b", "r_base"]),
        ({"useFP16": True, "macro": ["A"]}, ["r_a_f16", "r_a_f32", "r_base_f16", "r_base_f32"]),
        ({"useFP16": False}, ["r_base"]),
        ({}, ["r"]),
        ({"axes": {"n": [4, 8]}}, ["r_4", "r_8"]),
    ],
)
def test_short_forms(bare: Project, entry: object, names: list[str]) -> None:
    bare.write("r.comp.j2", "")
    bare.macro({"$schema": "x", "r.comp.j2": entry})
    variants = expand(load_entries(bare.glsl))
    assert [variant.name for variant in variants] == names
    for variant in variants:
        assert ("storage16" in variant.requires) == variant.name.endswith("_f16")


@pytest.mark.parametrize(
    ("entry", "line", "message"),
    [
        ('{"axis": {}}', 3, "unknown key 'axis'"),
        ('{"axes": {\n"op": ["A"],\n"op": ["B"]}}', 5, "duplicate key 'op'"),
        ('{"axes": {"Op": ["A"]}}', 3, "lower-case Python identifier"),
        ('{"axes": {"spec": ["A"]}}', 3, "already used by a template helper"),
        ('{"axes": {"op": []}}', 3, "at least one value"),
        ('{"axes": {"op": "A"}}', 3, "at least one value"),
        ('{"axes": {"op": ["A",\n"a"]}}', 3, "lists 'a' twice"),
        ('{"axes": {"op": [\n1.5]}}', 4, "1.5 is neither"),
        ('{"axes": {"op": [\ntrue]}}', 4, "True is neither"),
        ('{"axes": {"op": [\n"A-B"]}}', 4, "'A-B' is neither"),
        ('{"axes": {"a,b": []}}', 3, "'a,b' must be a list with at least one row"),
        ('{"axes": {"a,b": [\n[1, 2],\n[3]]}}', 5, "a list of 2 values"),
        ('{"axes": {"a,b": [\n[1, 2],\n[1, 2]]}}', 5, "a row is listed twice"),
        ('{"axes": {"a,b": [\n[1, 1.5]]}}', 4, "axis 'b': 1.5 is neither"),
        ('{"axes": {"a,a": [[1, 2]]}}', 3, "one of them is listed twice"),
        ('{"axes": {"a": [1],\n"a,b": [[1, 2]]}}', 4, "one of them is listed twice"),
        ('{"axes": {"a,B": [[1, 2]]}}', 3, "lower-case Python identifier"),
        ('{"axes": {"a,b": [["x", 1], ["X", 2]]}}', 3, "lists 'x' twice"),
        ('{"axes": {"op": ["A"]},\n"exclude": [\n{"ob": "A"}]}', 5, "unknown axis 'ob'"),
        ('{"axes": {"op": ["A"]},\n"exclude": [\n{"op": "B"}]}', 5, "'op=B', which the axis"),
        ('{"axes": {"op": ["A"]}, "exclude": [{}]}', 3, "would exclude every variant"),
        ('{"axes": {"op": ["A"]}, "exclude": [{"op": "A"}]}', 3, "leave no variant"),
        ('{"requires": ["storage61"]}', 3, "did you mean 'storage16'?"),
        ('{"requires": {\n"op=A": ["int8"]}}', 4, "unknown axis 'op'"),
        ('{"axes": {"op": ["A"]}, "requires": {\n"op=B": ["int8"]}}', 4, "has no value 'B'"),
        ('{"axes": {"op": ["A"]}, "requires": {\n"op": ["int8"]}}', 4, "is not 'axis=value"),
        ('{"optimize":\n"-O3"}', 4, "must be one of -O, -Os, none"),
        ('{"op_type": 3}', 3, "must be a string"),
        ('{"spec": 3}', 3, "'spec' must be an object"),
        ('{"spec": {\n"N": "3"}}', 4, "must be a number or a truth value"),
        ('{"spec": {\n"local_size_x": 0}}', 4, "it must be a positive integer"),
        ('{"spec": {\n"local_size_z": true}}', 4, "it must be a positive integer"),
        ('{"requires": [\n"int8", "int8"]}', 3, "'int8' is listed twice"),
        ('{"axes": {"op": ["A", "B"]},\n"exclude": [{"op": ["A", "A"]}]}', 4, "'op=A' twice"),
        (
            '{"axes": {"op": ["A", "B"]},\n"exclude": [\n{"op": "A"},\n{"op": "A"}]}',
            6,
            "the exclusion op=A excludes nothing",
        ),
        (
            '{"axes": {"n": [1, 2, 3]},\n"exclude": [{"n": 1},\n{"n": 2},\n{"n": [1, 2]}]}',
            6,
            "the exclusion n=1|2 excludes nothing",
        ),
        (
            '{"axes": {"op": ["A", "B"]}, "exclude": [{"op": "A"}],\n"optimize": {"op=A": "-Os"}}',
            4,
            "'optimize' has a rule for 'op=A', but the exclusions leave no such variant",
        ),
        (
            '{"axes": {"op": ["A", "B"]}, "exclude": [{"op": "A"}],\n"requires": {"op=A": []}}',
            4,
            "'requires' has a rule for 'op=A'",
        ),
        (
            '{"axes": {"op": ["A", "B"]},\n"requires": {"op=A,op=B": ["int8"]}}',
            4,
            "names axis 'op' twice: it never holds",
        ),
        ('{"useFP16": 1}', 3, "true or false"),
        ("3", 3, "must be an object"),
    ],
)
def test_mistakes_in_an_entry(bare: Project, entry: str, line: int, message: str) -> None:
    bare.write("r.comp.j2", "")
    bare.macro('{\n  "r.comp.j2":\n' + entry + "\n}")
    with pytest.raises(ShaderError) as caught:
        expand(load_entries(bare.glsl))
    assert message in str(caught.value)
    # The value starts on the line after its key, except where the mistake is the entry itself.
    assert str(caught.value).startswith(f"macro.json:{line}: ")


def test_all_mistakes_at_once(bare: Project) -> None:
    bare.write("a.comp.j2", "")
    bare.write("b.comp.j2", "")
    bare.write("c.comp.j2", "")
    bare.macro(
        '{\n"a.comp.j2": {"axes": {},\n"optimise": "none",\n"op_type": 3,\n"requires": ["int9"]},'
        '\n"b.comp.j2": {"axes": []},\n"d.comp.j2": {}}'
    )
    with pytest.raises(BuildFailedError) as caught:
        load_entries(bare.glsl)
    assert [(error.template, error.line) for error in caught.value.failures] == [
        ("macro.json", 3),
        ("macro.json", 5),
        ("macro.json", 4),
        ("macro.json", 6),
        ("macro.json", 7),
        ("c.comp.j2", 1),
    ]
    assert [failure.hint for failure in caught.value.failures][:2] == [
        "did you mean 'optimize'?",
        "did you mean 'int8'?",
    ]
    assert caught.value.failures[4].hint == "did you mean 'c.comp.j2'?"


def test_orphans_on_both_sides(bare: Project) -> None:
    bare.macro('{\n "a.comp.j2": {},\n "b.comp.j2": {}\n}')
    bare.write("a.comp.j2", "")
    with pytest.raises(ShaderError, match=r"macro\.json:3: 'b\.comp\.j2' has an entry but no temp"):
        load_entries(bare.glsl)
    bare.write("b.comp.j2", "")
    bare.write("c.comp.j2", "")
    with pytest.raises(ShaderError, match=r"c\.comp\.j2:1: the template has no entry"):
        load_entries(bare.glsl)
    assert [entry.name for entry in load_entries(bare.glsl, frozenset({"b"}))] == ["b"]
    with pytest.raises(ShaderError, match="there is no template 'nope'"):
        load_entries(bare.glsl, frozenset({"nope"}))


@pytest.mark.parametrize(
    "file", ["A.comp.j2", "a.comp", "1a.comp.j2", "class.comp.j2", "a-b.comp.j2"]
)
def test_template_names_are_python_names(bare: Project, file: str) -> None:
    bare.write(file, "")
    bare.macro({file: {}})
    with pytest.raises(ShaderError, match=r"macro\.json:2: .* must be a lower-case Python identif"):
        load_entries(bare.glsl)


def test_two_templates_may_not_make_one_name(bare: Project) -> None:
    bare.write("a.comp.j2", "")
    bare.write("a_b.comp.j2", "")
    bare.macro({"a.comp.j2": {"axes": {"x": ["B"]}}, "a_b.comp.j2": {}})
    with pytest.raises(ShaderError, match="two variants are called 'a_b'"):
        expand(load_entries(bare.glsl))


def test_the_schema_agrees_with_the_reader() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    package = Path(__file__).resolve().parents[2] / "vkmnn"
    schema = json.loads((package / "codegen" / "macro.schema.json").read_text(encoding="utf-8"))
    validator = jsonschema.Draft202012Validator(schema)
    macro = json.loads((package / "shaders" / "glsl" / "macro.json").read_text(encoding="utf-8"))
    assert not list(validator.iter_errors(macro))
    for good in ([], ["A"], {"useFP16": True}, {}, {"requires": ["int8"], "optimize": "none"}):
        assert validator.is_valid({"r.comp.j2": good}), good
    assert validator.is_valid({"r.comp.j2": {"axes": {"a,b": [[1, "x"], [2, "x"]]}}})
    for rows in ([], [[1]], [1]):
        assert not validator.is_valid({"r.comp.j2": {"axes": {"a,b": rows}}}), rows
    for bad in (3, {"axis": {}}, {"axes": {"op": []}}, {"optimize": "-O3"}, {"exclude": [{}]}):
        assert not validator.is_valid({"r.comp.j2": bad}), bad


def test_words_stand_for_float_elements(bare: Project) -> None:
    bare.write("gemm.comp.j2", "")
    axes = {"element": ["$floats", "i32"], "load": ["buffer", "image"]}
    rules = [{"load": "image", "element": ["$narrow", "$imageless", "i32"]}]
    bare.macro({"gemm.comp.j2": {"axes": axes, "exclude": rules}})
    (entry,) = load_entries(bare.glsl)
    assert entry.axes["element"] == (*FLOATS, "i32")
    in_images = [one.axes["element"] for one in entry.variants() if one.axes["load"] == "image"]
    assert in_images == ["f32"]


def test_unknown_words_are_refused(bare: Project) -> None:
    bare.write("gemm.comp.j2", "")
    bare.macro({"gemm.comp.j2": {"axes": {"element": ["$halves"]}}})
    with pytest.raises(ShaderError, match="'\\$halves' is neither a word") as caught:
        load_entries(bare.glsl)
    assert "$floats" in str(caught.value.hint)
