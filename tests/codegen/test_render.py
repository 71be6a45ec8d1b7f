from __future__ import annotations

from pathlib import Path

import pytest

from tests.codegen.conftest import SCALE, Project
from vkmnn.codegen.render import Rendered, Renderer
from vkmnn.errors import ShaderError

GOLDEN = Path(__file__).parent / "golden"
HEAD = '{{ local_size(8) }}\n{{ tensor_inout("y", "f32") }}\n'


def render(project: Project, body: str, **axes: str | int) -> Rendered:
    project.write("t.comp.j2", HEAD + body)
    return Renderer(project.glsl).render_file("t.comp.j2", axes, "t_variant")


@pytest.mark.parametrize(
    ("name", "axes"),
    [
        ("scale_f32_texel", {"dtype": "f32", "load": "texel"}),
        ("scale_f16_buffer", {"dtype": "f16", "load": "buffer"}),
    ],
)
def test_golden(bare: Project, name: str, axes: dict[str, str | int]) -> None:
    bare.write("scale.comp.j2", SCALE)
    rendered = Renderer(bare.glsl).render_file("scale.comp.j2", axes, name)
    assert rendered.text == (GOLDEN / f"{name}.comp").read_text(encoding="utf-8")


def test_every_line_knows_where_it_comes_from(bare: Project) -> None:
    bare.write("scale.comp.j2", SCALE)
    rendered = Renderer(bare.glsl).render_file(
        "scale.comp.j2", {"dtype": "f16", "load": "buffer"}, "v"
    )
    lines = rendered.text.splitlines()
    assert len(lines) == len(rendered.lines)
    source = SCALE.splitlines()
    for text, (file, line) in zip(lines, rendered.lines, strict=True):
        if file == "scale.comp.j2" and text and "{{" not in source[line - 1]:
            assert source[line - 1].strip() in text or text.startswith("#"), (text, line)
    where = {text.strip(): place for text, place in zip(lines, rendered.lines, strict=True)}
    assert where["value *= pc.alpha;"] == ("scale.comp.j2", 10)
    assert where["value += SHIFT * 1.0;"] == ("scale.comp.j2", 20)
    assert where["y_store(i, value);"] == ("scale.comp.j2", 22)
    assert where["uint global_index()"][0] == "include/common.glsl.j2"


def test_rendering_leaves_no_marks_and_is_the_same_twice(bare: Project) -> None:
    first = render(bare, '{% macro m(x) %}\nfloat {{ x }};\n{% endmacro %}\n{{ m("a")|upper }}')
    assert "\x01" not in first.text
    assert "\x02" not in first.text
    again = Renderer(bare.glsl).render_file("t.comp.j2", {}, "t_variant")
    assert again.text == first.text
    assert again.lines == first.lines


def test_a_macro_may_produce_a_name(bare: Project) -> None:
    rendered = render(bare, '{% macro m() %}bias{% endmacro %}{{ tensor_in(m(), "f32") }}')
    assert [binding.name for binding in rendered.declared.bindings] == ["y", "bias"]
    assert [binding.line for binding in rendered.declared.bindings] == [
        ("t.comp.j2", 2),
        ("t.comp.j2", 3),
    ]


def test_a_view_takes_no_binding_of_its_own(bare: Project) -> None:
    declared = render(bare, '{{ tensor_inout("wide", "vec4", view_of="y") }}').declared
    assert [binding.name for binding in declared.bindings] == ["y"]
    assert [(view.name, view.index) for view in declared.views] == [("wide", 0)]


def test_windows_line_ends_do_not_matter(bare: Project) -> None:
    text = "void main()\n{\n}\n"
    plain = render(bare, text).text
    (bare.glsl / "t.comp.j2").write_bytes((HEAD + text).replace("\n", "\r\n").encode())
    assert Renderer(bare.glsl).render_file("t.comp.j2", {}, "v").text == plain


@pytest.mark.parametrize(
    ("body", "line", "message"),
    [
        ("\n{{ oops }}", 4, "'oops' is undefined"),
        ("{% if dtpye == 'f32' %}{% endif %}", 3, "'dtpye' is undefined"),
        ("{% for %}", 3, "[t_variant]"),
        ("\n\n{% if true %}\n", 5, "endif"),
        ("{% include 'include/nope.glsl.j2' %}", 3, "no template or include 'include/nope"),
        ("{{ 1 / 0 }}", 3, "ZeroDivisionError"),
        ("{{ ''.__class__ }}", 3, "__class__"),
        ("#version 460", 3, "'#version' is written by the generator"),
        ("x\n #extension GL_X : require", 4, "use {{ extension("),
        ('{{ tensor_in("a", "vec5") }}', 3, "unknown element type 'vec5'"),
        ('{{ tensor_in("a", "f32", load="sound") }}', 3, "buffer, texel, image, not 'sound'"),
        ('{{ tensor_in("a", "f32", load="image") }}', 3, "images hold texels of four floats"),
        ('{{ tensor_in("a", "ivec4", load="image") }}', 3, "images hold texels of four floats"),
        ('{{ tensor_inout("a", "vec4", load="image") }}', 3, "an image is read or written"),
        ('{{ tensor_in("a", "f64", load="texel") }}', 3, "has no texel format"),
        ('{{ tensor_in("y", "f32") }}', 3, "'y' is declared twice"),
        ('{{ tensor_inout("y", "f32", view_of="y") }}', 3, "'y' is declared twice"),
        ('{{ tensor_in("a", "f32", view_of="y") }}', 3, "no buffer with the same access"),
        ('{{ tensor_in("a", "f32", view_of="z") }}', 3, "view_of='z' names no buffer"),
        ('{{ tensor_inout("a", "vec5", view_of="y") }}', 3, "unknown element type 'vec5'"),
        ('{{ tensor_in("a b", "f32") }}', 3, "not an identifier"),
        ('{{ tensor_in("a") }}', 3, "TypeError"),
        ("{{ local_size(8) }}", 3, "declared twice"),
        ('{{ params("n:uint") }}\n{{ params("m:uint") }}', 4, "declared twice"),
        ("{{ params() }}", 3, "at least one member"),
        ('{{ params("n:double") }}', 3, "'n:double' is not 'name:type'"),
        ('{{ params("n:uint", "n:int") }}', 3, "'n' is declared twice"),
        ('{{ params("pack:uint") }}', 3, "a keyword of Python"),
        ('{{ params("in:uint") }}', 3, "a keyword of Python"),
        ('{{ params("n:uint[0]") }}', 3, "arrays have a length"),
        ('{{ params("n:uint=1.5") }}', 3, "bad default"),
        ('{{ params("n:uint", "t:uint[32]") }}', 3, "take 132 bytes"),
        ('{{ spec("A", "half", 0) }}', 3, "type must be one of"),
        ('{{ spec("A", "uint", -1) }}', 3, "-1 is not a uint"),
        ('{{ spec("A", "bool", 1) }}', 3, "1 is not a bool"),
        ('{{ extension("KHR_shader") }}', 3, "does not look like GL_"),
        ('{{ enum("E") }}', 3, "empty"),
        ('{{ enum("E", "a") }}', 3, "not an upper-case identifier"),
        ("{{ subgroup_size(12) }}", 3, "power of two"),
        ('{{ vec("f64", 4) }}', 3, "no such element type"),
        ("{{ compute_type('x') }}", 3, "unknown element type"),
        ("\n{{ fail('no such thing') }}", 4, "no such thing"),
    ],
)
def test_mistakes_name_file_line_and_variant(
    bare: Project, body: str, line: int, message: str
) -> None:
    with pytest.raises(ShaderError) as caught:
        render(bare, body)
    text = str(caught.value)
    assert message in text
    assert text.startswith(f"t.comp.j2:{line}: "), text
    assert "[t_variant]" in text


def test_a_mistake_in_an_include_names_the_include(bare: Project) -> None:
    bare.write("include/bad.glsl.j2", "// fine\n{{ nothing }}\n")
    with pytest.raises(ShaderError, match=r"^include/bad\.glsl\.j2:2: 'nothing' is undefined"):
        render(bare, "{% include 'include/bad.glsl.j2' %}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{{ tensor_in("a", "f32") }}', "declares no workgroup size"),
        ("{{ local_size(8) }}", "declares no tensor"),
    ],
)
def test_incomplete_templates(bare: Project, text: str, message: str) -> None:
    bare.write("t.comp.j2", text)
    with pytest.raises(ShaderError, match=rf"^t\.comp\.j2:1: .*{message}"):
        Renderer(bare.glsl).render_file("t.comp.j2", {}, "v")


def test_params_are_laid_out_without_padding(bare: Project) -> None:
    params = render(bare, '{{ params("n:uint", "t:int[3]", "a:float=-2.5") }}').declared.params
    assert [(p.name, p.type, p.count, p.offset, p.default) for p in params] == [
        ("n", "uint", None, 0, None),
        ("t", "int", 3, 4, None),
        ("a", "float", None, 16, -2.5),
    ]


def test_extensions_go_to_the_head_sorted_and_once(bare: Project) -> None:
    text = render(
        bare,
        'float z;\n{{ extension("GL_KHR_b") }}{{ extension("GL_EXT_a") }}'
        '{{ extension("GL_KHR_b") }}'
        '{{ tensor_in("h", "f16") }}',
    ).text.splitlines()
    assert text[:4] == [
        "#version 450",
        "#extension GL_EXT_a : require",
        "#extension GL_EXT_shader_16bit_storage : require",
        "#extension GL_KHR_b : require",
    ]


@pytest.mark.parametrize(
    ("element", "load", "type_", "computed"),
    [
        ("f16", "buffer", "storage", "float(x_data[i])"),
        ("f16vec2", "buffer", "storage", "vec2(x_data[i])"),
        ("f16vec4", "buffer", "storage", "vec4(x_data[i])"),
        ("f16vec4", "texel", "texel", "imageLoad(x_image, int(i))"),
        ("ivec4", "buffer", "storage", "x_data[i]"),
        ("i32", "texel", "texel", "imageLoad(x_image, int(i)).x"),
    ],
)
def test_loads_are_of_32_bits(
    bare: Project, element: str, load: str, type_: str, computed: str
) -> None:
    rendered = render(bare, f'{{{{ tensor_in("x", "{element}", load="{load}") }}}}')
    binding = rendered.declared.bindings[1]
    assert (binding.element, binding.type) == (element, type_)
    assert f"#define x_load(i) {computed}" in rendered.text.splitlines()


@pytest.mark.parametrize(
    ("element", "load", "needs"),
    [
        ("f32", "texel", set()),
        ("f16", "buffer", {"storage16"}),
        ("f16vec4", "texel", set()),
        ("f16", "texel", {"texel_r16f", "storage_formats"}),
        ("u8vec4", "buffer", {"storage8"}),
        ("bf16", "buffer", {"storage16", "bfloat16"}),
        ("i64", "buffer", {"int64"}),
        ("f64", "buffer", {"float64"}),
    ],
)
def test_features_follow_from_elements(
    bare: Project, element: str, load: str, needs: set[str]
) -> None:
    rendered = render(bare, f'{{{{ tensor_in("x", "{element}", load="{load}") }}}}')
    assert rendered.declared.needs == needs


def test_subgroups_of_a_size_need_control_of_it(bare: Project) -> None:
    rendered = render(bare, "{{ subgroup_size(8) }}")
    assert rendered.declared.needs == {"subgroup_size_control", "full_subgroups"}


@pytest.mark.parametrize(
    ("element", "word"), [("f32", "ivec4"), ("i32", "ivec4"), ("f16", "f16vec4"), ("u8", "u8vec4")]
)
def test_words_are_moved_by_size(bare: Project, element: str, word: str) -> None:
    rendered = render(bare, '{{ tensor_out("z", words(4, element)) }}', element=element)
    assert rendered.declared.bindings[1].element == word
