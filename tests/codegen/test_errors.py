"""Each kind of mistake, through the command line: location, message, source line, and next step."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest
from typer.testing import CliRunner

from tests.codegen.conftest import Project
from vkmnn.codegen.cli import app

TEMPLATE = """\
{{ local_size(64) }}
{{ tensor_in("x", "f32") }}
{{ tensor_out("y", dtype) }}
{{ params("count:uint", "alpha:float=1.0") }}
{% include "include/own.glsl.j2" %}
{% macro twice(v) %}
    float doubled = {{ v }} * 2.0;
{% endmacro %}

void main()
{
    uint i = global_index();
    {{ twice("x_load(i)") }}
    if (i < pc.count)
        y_store(i, pc.alpha * own(x_load(i)) + doubled);
}
"""
INCLUDE = """\
{% include "include/common.glsl.j2" %}
float own(float v)
{
    return v + 1.0;
}
"""
MACRO = """\
{
  "t.comp.j2": {
    "axes": {
      "dtype": ["f32", "f16"]
    },
    "exclude": [],
    "requires": {"dtype=f16": ["storage16"]},
    "optimize": "-O"
  }
}
"""
FILES = {"t.comp.j2": TEMPLATE, "include/own.glsl.j2": INCLUDE, "macro.json": MACRO}


@dataclass(frozen=True)
class Mistake:
    """An edit of one file, and the expected content of the message."""

    file: str
    old: str
    new: str
    place: str
    message: str
    snippet: str
    hint: str = ""


MISTAKES = {
    "GLSL syntax": Mistake(
        "t.comp.j2", "pc.alpha *", "pc.alpha * *", "t.comp.j2:15", "syntax error", "pc.alpha * *"
    ),
    "GLSL name": Mistake(
        "t.comp.j2",
        "uint i = global",
        "uint i = globl",
        "t.comp.j2:12",
        "'globl_index' : no matching overloaded function found [t_f16, t_f32]",
        "uint i = globl_index();\n        |              ^^^^^^^^^^^",
    ),
    "GLSL in an include": Mistake(
        "include/own.glsl.j2",
        "v + 1.0;",
        "v + w;",
        "include/own.glsl.j2:4",
        "'w' : undeclared identifier",
        "return v + w;\n        |                ^",
    ),
    "GLSL in a macro": Mistake(
        "t.comp.j2",
        "{{ v }} * 2.0;",
        "{{ v }} * two;",
        "t.comp.j2:7",
        "'two' : undeclared identifier",
        "{{ v }} * two",
    ),
    "GLSL of one variant": Mistake(
        "t.comp.j2",
        "    uint i",
        '    {{ "uint j = 1.5;" if dtype == "f16" }}\n    uint i',
        "t.comp.j2:12",
        "[t_f16]",
        "uint j = 1.5",
    ),
    "undefined variable": Mistake(
        "t.comp.j2",
        '"y", dtype)',
        '"y", dtpye)',
        "t.comp.j2:3",
        "'dtpye' is undefined [t_f16, t_f32]",
        '"y", dtpye) }}\n        |                    ^^^^^',
        "axes of this template: dtype",
    ),
    "undefined variable in an include": Mistake(
        "include/own.glsl.j2",
        "1.0",
        "{{ one }}",
        "include/own.glsl.j2:4",
        "'one' is undefined",
        "v + {{ one }};",
    ),
    "Jinja syntax": Mistake(
        "t.comp.j2", "{% endmacro %}", "{% endfor %}", "t.comp.j2:8", "unknown tag", "{% endfor %}"
    ),
    "Jinja syntax in an include": Mistake(
        "include/own.glsl.j2",
        "v + 1.0",
        "v + {{ 1.0 +}}",
        "include/own.glsl.j2:4",
        "unexpected 'end of print statement'",
        "{{ 1.0 +}}",
    ),
    "a missing include": Mistake(
        "t.comp.j2",
        "include/own.",
        "include/won.",
        "t.comp.j2:5",
        "no template or include 'include/won.glsl.j2'",
        'include "include/won.glsl.j2"',
        "named from the template folder",
    ),
    "a template as include": Mistake(
        "t.comp.j2",
        '"include/own.glsl.j2"',
        '"t.comp.j2"',
        "t.comp.j2:5",
        "'t.comp.j2' is a template, not an include",
        'include "t.comp.j2"',
    ),
    "an unknown element type": Mistake(
        "t.comp.j2",
        '"x", "f32"',
        '"x", "float"',
        "t.comp.j2:2",
        "tensor 'x': unknown element type 'float'",
        "{{ tensor_in",
        "one of: f32, vec2",
    ),
    "a tensor declared twice": Mistake(
        "t.comp.j2", '"y", dtype', '"x", dtype', "t.comp.j2:3", "'x' is declared twice", '"x", dt'
    ),
    "an unused tensor": Mistake(
        "t.comp.j2",
        '{{ tensor_out("y"',
        '{{ tensor_in("z", "f32") }}\n{{ tensor_out("y"',
        "t.comp.j2:3",
        "tensor 'z' (binding 1) is declared but never used",
        'tensor_in("z", "f32")',
        "declare it only where it is used",
    ),
    "an unused view": Mistake(
        "t.comp.j2",
        '{{ tensor_out("y"',
        '{{ tensor_in("z", "u32", view_of="x") }}\n{{ tensor_out("y"',
        "t.comp.j2:3",
        "tensor 'z' (binding 0) is declared but never used",
        'tensor_in("z", "u32"',
        "declare it only where it is used",
    ),
    "a binding that is written by hand": Mistake(
        "t.comp.j2",
        "void main()\n{",
        "layout(binding = 7) buffer Z { float z_data[]; };\nvoid main()\n{\nz_data[0] = 1.0;",
        "t.comp.j2:1",
        "'z' at set 0, binding 7, which no helper declared",
        "local_size",
        "tensor_in, tensor_out or tensor_inout",
    ),
    "a declaration that is contradicted": Mistake(
        "t.comp.j2",
        "void main()\n{\n    uint i =",
        "layout(constant_id = 3) const uint K = 3u;\nvoid main()\n{\n    uint i = K +",
        "t.comp.j2:1",
        "specialization constant 3 'K', which no helper declared",
        "",
        "use {{ spec(…) }}",
    ),
    "unused params": Mistake(
        "t.comp.j2",
        "if (i < pc.count)\n        y_store(i, pc.alpha *",
        "y_store(i,",
        "t.comp.j2:4",
        "params is declared but never used",
        "{{ params(",
    ),
    "params that differ": Mistake(
        "t.comp.j2",
        '"alpha:float=1.0") }}',
        '"alpha:float=1.0", *(["more:uint"] if dtype == "f16" else [])) }}',
        "t.comp.j2:4",
        "'t_f32' declares other params than 't_f16'",
        "{{ params(",
        "declare the same in every variant",
    ),
    "a feature that is not required": Mistake(
        "t.comp.j2",
        "{{ v }} * 2.0",
        "float(double({{ v }}) * 2.0LF)",
        "t.comp.j2:1",
        "capability Float64: 'requires' does not list 'float64' [t_f16, t_f32]",
        "local_size",
        'add "float64" to "requires" in macro.json',
    ),
    "a feature that does not exist": Mistake(
        "macro.json",
        "storage16",
        "storage61",
        "macro.json:7",
        "unknown feature 'storage61'",
        '"storage61"',
        "did you mean 'storage16'?",
    ),
    "JSON syntax": Mistake(
        "macro.json", '"exclude": [],', '"exclude": []', "macro.json:7", "expected '}'", "requires"
    ),
    "a key twice": Mistake(
        "macro.json",
        '"exclude": [],',
        '"exclude": [],\n    "exclude": [],',
        "macro.json:7",
        "duplicate key 'exclude' (first on line 6)",
        '"exclude": []',
    ),
    "a template twice": Mistake(
        "macro.json",
        '\n  "t.comp.j2"',
        '\n  "t.comp.j2": {},\n  "t.comp.j2"',
        "macro.json:3",
        "duplicate key 't.comp.j2'",
        '"t.comp.j2": {',
    ),
    "an unknown key": Mistake(
        "macro.json",
        '"optimize"',
        '"optimise"',
        "macro.json:8",
        "unknown key 'optimise'",
        '"optimise": "-O"',
        "did you mean 'optimize'?",
    ),
    "an axis value": Mistake(
        "macro.json", '"f16"]', '"f-16"]', "macro.json:4", "'f-16' is neither a word", '"f-16"'
    ),
    "an axis value twice": Mistake(
        "macro.json", '"f16"]', '"f16", "F16"]', "macro.json:4", "lists 'f16' twice", '"F16"'
    ),
    "an exclusion of nothing": Mistake(
        "macro.json",
        '"exclude": []',
        '"exclude": [{"dtype": "f61"}]',
        "macro.json:6",
        "exclusion of 'dtype=f61', which the axis does not have",
        '{"dtype": "f61"}',
        "did you mean 'f16'?",
    ),
    "an exclusion twice": Mistake(
        "macro.json",
        '"exclude": []',
        '"exclude": [{"dtype": "f16"},\n {"dtype": "f16"}]',
        "macro.json:7",
        "the exclusion dtype=f16 excludes nothing",
        '{"dtype": "f16"}',
    ),
    "a rule for what is excluded": Mistake(
        "macro.json",
        '"exclude": []',
        '"exclude": [{"dtype": "f16"}]',
        "macro.json:7",
        "'requires' has a rule for 'dtype=f16', but the exclusions leave no such variant",
        '"requires": {"dtype=f16"',
    ),
    "a default of no constant": Mistake(
        "macro.json",
        '"optimize"',
        '"spec": {"TILE": 8},\n    "optimize"',
        "macro.json:8",
        "'t.comp.j2' declares no specialization constant 'TILE'",
        '"spec": {"TILE": 8}',
        "one of: local_size_x",
    ),
    "an entry without a template": Mistake(
        "macro.json",
        '\n  "t.comp.j2": {',
        '\n  "gone.comp.j2": {},\n  "t.comp.j2": {',
        "macro.json:2",
        "'gone.comp.j2' has an entry but no template in glsl/",
        '"gone.comp.j2": {}',
        "write it, or take the entry out",
    ),
    "a template without an entry": Mistake(
        "macro.json",
        "t.comp.j2",
        "tt.comp.j2",
        "t.comp.j2:1",
        "the template has no entry in macro.json",
        "local_size",
        'add "t.comp.j2"',
    ),
}


@pytest.fixture
def made(project: Project) -> Project:
    (project.glsl / "scale.comp.j2").unlink()
    for name, text in FILES.items():
        project.write(name, text)
    return project


def run(project: Project) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["--shaders", str(project.root)])
    return done.exit_code, done.output


def test_the_template_is_well_without_them(made: Project) -> None:
    assert run(made)[0] == 0


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake(made: Project, name: str) -> None:
    mistake = MISTAKES[name]
    assert FILES[mistake.file].count(mistake.old) == 1
    made.write(mistake.file, FILES[mistake.file].replace(mistake.old, mistake.new))
    status, output = run(made)
    assert status == 1
    errors = re.split(r"^error: ", output, flags=re.MULTILINE)[1:]
    mine = [error for error in errors if error.startswith(f"{mistake.place}: ")]
    assert mine, output
    (text,) = [error for error in mine if mistake.message in error] or [output]
    assert mistake.message in text
    line = mistake.place.partition(":")[2]
    source = text.partition(f"\n  {line:>5} | ")[2]
    assert source, text
    assert mistake.snippet in source, text
    if mistake.hint:
        assert re.search(rf"\n  hint: .*{re.escape(mistake.hint)}", text), text
    assert not (made.root / "manifest.json").exists()


def test_what_follows_from_a_mistake_is_left_out(made: Project) -> None:
    made.write("t.comp.j2", TEMPLATE.replace("pc.alpha", "pc.alhpa"))
    output = run(made)[1]
    assert "t.comp.j2:15: 'alhpa' : no such field" in output
    assert output.count("error: ") == 1, output


def test_all_of_them_at_once(made: Project) -> None:
    """One mistake in each of several templates, in an include and in macro.json: one run."""
    for name in "abc":
        made.write(f"{name}.comp.j2", TEMPLATE.replace("dtype", '"f32"'))
    made.write("a.comp.j2", TEMPLATE.replace("dtype", "nothing"))
    made.write("b.comp.j2", TEMPLATE.replace("dtype", '"f32"').replace("count)", "n)"))
    made.write("orphan.comp.j2", TEMPLATE)
    made.write("t.comp.j2", TEMPLATE.replace("{{ v }} * 2.0", "float(double({{ v }}) * 2.0LF)"))
    made.macro(
        '{\n"a.comp.j2": {},\n"b.comp.j2": {},\n"c.comp.j2": {"axis": 1},\n'
        '"t.comp.j2": {"axes": {"dtype": ["f32", "f16"]}},\n"gone.comp.j2": {}\n}'
    )
    status, output = run(made)
    assert status == 1
    for start in (
        "a.comp.j2:3: 'nothing' is undefined [a]",
        "b.comp.j2:14: 'n' : no such field",
        "macro.json:4: 'c.comp.j2': unknown key 'axis'",
        "macro.json:6: 'gone.comp.j2' has an entry but no template",
        "orphan.comp.j2:1: the template has no entry",
        "t.comp.j2:1: the SPIR-V uses capability Float64",
    ):
        assert f"error: {start}" in output, output
    assert "errors, nothing was written" in output
    assert output.count("error: ") == int(re.findall(r"(\d+) errors, nothing", output)[0])
