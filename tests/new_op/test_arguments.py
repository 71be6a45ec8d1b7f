"""Arguments that `new-op` refuses, without writing anything."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from vkmnn.codegen.cli import app
from vkmnn.codegen.new_op import Arguments, describe, target_of, with_entry, write
from vkmnn.codegen.places import SHADERS
from vkmnn.codegen.variants import expand, load_entries
from vkmnn.errors import ShaderError

GOOD = Arguments("thing", 1, [], None, None, Path("my-ops"))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "QuickGelu"}, r"'QuickGelu' cannot name .*\n.*quick_gelu"),
        ({"name": "1st"}, "'1st' cannot name a shader"),
        ({"name": "a__b"}, "'a__b' cannot name a shader"),
        ({"name": "class"}, "'class' cannot name a shader"),
        ({"name": "x" * 33}, "at most 32 characters"),
        ({"name": "kernels"}, "the module that codegen writes"),
        ({"op": "my_op"}, r"'my_op' cannot name an operator\n.*Thing"),
        ({"inputs": 0}, r"0 inputs\n.*1 to 7"),
        ({"inputs": 8}, r"8 inputs\n.*1 to 7"),
        ({"params": ["alpha"]}, "'alpha' is not NAME:TYPE"),
        ({"params": ["alpha:double"]}, "TYPE is float or int"),
        ({"params": ["alpha:float=much"]}, "'much' is not a valid float"),
        ({"params": ["alpha:float=inf"]}, "'inf' is not a valid float"),
        ({"params": ["k:int=2.5"]}, "'2.5' is not a valid int"),
        ({"params": ["k:int=2147483648"]}, "is not a valid int"),
        ({"params": ["k:int=" + "9" * 400]}, "is not a valid int"),
        ({"params": ["x:float"]}, "cannot be called 'x'"),
        ({"params": ["n4:int"]}, "cannot be called 'n4'"),
        ({"params": ["in:int"]}, "cannot be called 'in'"),
        ({"params": ["smooth:float"]}, "cannot be called 'smooth'"),
        ({"params": ["Alpha:float"]}, "cannot be called 'Alpha'"),
        ({"params": ["a:int", "a:float"]}, "'a' is given twice"),
        ({"params": [f"p{i}:int" for i in range(32)]}, "room for 31"),
        ({"domain": "ai.onnx"}, "cannot be the domain"),
        ({"domain": "a b"}, "cannot be the domain"),
        ({"plugin": Path("my ops")}, "'my ops' cannot name a package"),
        ({"plugin": Path("json")}, "'json' exists already as a package"),
    ],
)
def test_arguments_that_cannot_be(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ShaderError, match=message):
        describe(replace(GOOD, **changed))


def test_defaults() -> None:
    numbers = ["k:int=1", "alpha:float", "beta:float=-.5"]
    new = describe(Arguments("leaky_gate", 2, numbers, None, None, Path("my-ops")))
    assert (new.op, new.domain, new.inputs) == ("LeakyGate", "my_ops", ("x0", "x1"))
    assert [param.python for param in new.params] == [
        "alpha: float",
        "k: int = 1",
        "beta: float = -0.5",
    ]


def test_an_entry_in_the_form_of_the_file() -> None:
    old = (SHADERS / "glsl" / "macro.json").read_text("utf-8")
    new = with_entry(old, "thing.comp.j2", "Thing")
    assert new.startswith(old.rstrip().removesuffix("}").rstrip() + ',\n\n  "thing.comp.j2": {\n')
    assert new.endswith("  }\n}\n")
    assert {**json.loads(old), "thing.comp.j2": json.loads(new)["thing.comp.j2"]} == json.loads(new)
    first = with_entry("{}\n", "thing.comp.j2", "Thing")
    assert list(json.loads(first)) == ["thing.comp.j2"]
    assert list(json.loads(with_entry(first, "b.comp.j2", "B"))) == ["thing.comp.j2", "b.comp.j2"]


def invoke(*arguments: str | Path) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["new-op", *map(str, arguments)])
    return result.exit_code, " ".join(result.output.split())


def test_existing_files_are_kept(tmp_path: Path) -> None:
    plugin = ("--plugin", tmp_path / "my-ops", "--no-build")
    assert invoke("thing", *plugin)[0] == 0
    module = tmp_path / "my-ops" / "my_ops" / "thing.py"
    init = tmp_path / "my-ops" / "my_ops" / "__init__.py"
    module.write_text("# mine\n")
    init.write_text("# mine too\n")
    status, text = invoke("thing", *plugin)
    assert status == 1
    assert "'thing' exists already" in text
    assert "--force" in text
    assert module.read_text() == "# mine\n"
    assert invoke("thing", *plugin, "--force")[0] == 0
    assert module.read_text() != "# mine\n"
    assert init.read_text() == "# mine too\n"
    assert invoke("other", *plugin)[0] == 0
    entries = load_entries(tmp_path / "my-ops" / "my_ops" / "glsl")
    assert [variant.name for variant in expand(entries)] == [
        *("other_buffer", "other_texel", "thing_buffer", "thing_texel")
    ]


def test_an_operator_type_is_taken_once(tmp_path: Path) -> None:
    plugin = ("--plugin", tmp_path / "my-ops", "--no-build")
    status, text = invoke("thing", "--op", "Scale", *plugin)
    assert status == 1
    assert "operator Scale exists already: scale.comp.j2" in text
    assert not (tmp_path / "my-ops").exists()
    assert invoke("thing", "--op", "Thing", *plugin)[0] == 0
    assert "operator Thing exists already" in invoke("another", "--op", "Thing", *plugin)[1]


def test_a_folder_that_is_another_project(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text("[project]\n")
    status, text = invoke("thing", "--plugin", project)
    assert status == 1
    assert "new-op did not create it" in text
    assert [path.name for path in project.iterdir()] == ["pyproject.toml"]


def test_without_a_package() -> None:
    status, text = invoke("thing")
    assert status == 2
    assert "--plugin" in text


def test_damaged_macro_json(tmp_path: Path) -> None:
    new = describe(replace(GOOD, plugin=tmp_path / "my-ops"))
    target = target_of(new, tmp_path / "my-ops")
    (target.shaders / "glsl").mkdir(parents=True)
    (target.shaders / "glsl" / "macro.json").write_text('{"a": }')
    with pytest.raises(ShaderError, match=r"macro\.json:1"):
        write(new, target, False)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--outputs", "0"), "0 outputs"),
        (("--outputs", "5"), "1 to 4"),
        (("--optional", "1"), "1 of 1 inputs cannot be optional"),
        (("--element", "f64"), "'f64' is not an element type"),
        (("--element", "i32", "--cpu-only"), "only kernels have element types"),
        (("--cpu-only", "--geometry"), "exclude each other"),
        (("--param", "flag:bool=maybe"), "true or false"),
        (("--param", "axes:ints=1,b"), "'b' is not a valid int"),
        (("--outputs", "2", "--param", "y1:int"), "cannot be called 'y1'"),
    ],
)
def test_combinations_that_cannot_be(arguments: tuple[str, ...], text: str, tmp_path: Path) -> None:
    status, said = invoke("thing", *arguments, "--plugin", tmp_path / "odd")
    assert status == 1
    assert text in said
    assert not (tmp_path / "odd").exists()
