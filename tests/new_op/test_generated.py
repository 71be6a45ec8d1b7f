"""The output of `new-op` is clean and passes its own test."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.new_op.conftest import ROOT, Place

GATE = ("--inputs", "2", "--param", "alpha:float=1.5", "--param", "k:int")
LONG = (  # everything at its limit
    *("a_very_long_name_of_an_operator2", "--inputs", "7"),
    *("--domain", "com.example.of.a.domain.that.is.as.long2"),
    *("--param", "a_very_long_name_of_a_parameter1:float=-0.123456"),
    *("--param", "a_very_long_name_of_a_parameter2:int=3"),
)


@pytest.mark.slow
@pytest.mark.soak  # tests/new_op/test_example.py installs one, too
def test_as_a_package(fresh_environment: Place, drivers: list[dict[str, str]]) -> None:
    place = fresh_environment
    said = place.new_op("gate", *GATE, "--plugin", "my-ops")
    assert "pip install -e my-ops" in said
    place.new_op("plain", "--plugin", "my-ops")
    place.new_op(*LONG, "--plugin", "my-ops")
    place.run("python", "-m", "vkmnn.codegen", "--check", "--shaders", "my-ops/my_ops")
    place.lint(".", folder="my-ops")
    place.run("pip", "install", "./my-ops")
    (place.folder / "my-ops" / "my_ops").rename(place.folder / "gone")  # the installed one is used
    shown = place.run("vkmnn", "ops", "--plugins")
    for words in ("my-ops 0.1.0", "op type Gate", "converter of my_ops::Plain since opset 1"):
        assert words in shown
    for env in drivers:
        said = place.pytest("my-ops/tests", env=env)
        assert "passed" in said
        assert "skipped" not in said or not env


EVERYTHING = (
    *("--inputs", "3", "--optional", "2", "--outputs", "2"),
    *("--element", "f32", "--element", "f16", "--element", "i32"),
    *(f"--param={one}" for one in ("a:float=1", "k:int", "flag:bool=true", "mode:string=fast")),
    *(f"--param={one}" for one in ("w:floats", "axes:ints=0,1", "names:strings=a,b")),
    *("--param=raw:bytes", "--param=raws:byte_strings=x"),
)


def test_unusual_operators(tmp_path: Path) -> None:
    """Outputs, absent inputs, element types, attributes of every kind; also without a shader.

    The folder has the package's name, which Python takes for the package beside it.
    """
    place = Place(tmp_path, env={"PYTHONPATH": os.pathsep.join([str(ROOT), str(tmp_path / "odd")])})
    place.new_op("whole", *EVERYTHING, "--plugin", "odd")
    place.new_op("whole_numbers", "--element", "i32", "--inputs", "2", "--plugin", "odd")
    place.new_op("on_host", "--cpu-only", "--outputs", "3", "--param", "k:ints", "--plugin", "odd")
    said = place.new_op("moved", "--geometry", "--outputs", "2", "--plugin", "odd")
    assert "comp.j2" not in said
    place.lint(".", folder="odd", types=False)
    (tmp_path / "run.py").write_text(
        "import os, sys, pytest, vkmnn\n"
        "registered = vkmnn.load_plugin('odd').registered\n"
        "assert 'Vulkan execution of Whole' in registered, registered\n"
        "assert 'Vulkan execution of OnHost' not in registered\n"
        "sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', 'odd/tests']))\n"
    )
    assert " passed" in place.run(place.python, "run.py")
