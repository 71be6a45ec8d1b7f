from __future__ import annotations

import copy
import importlib.util
import json
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest

from tests.codegen.conftest import SCALE_ENTRY, Project
from vkmnn.codegen import outputs as writing
from vkmnn.codegen.manifest import SCHEMA_VERSION
from vkmnn.errors import ShaderError
from vkmnn.runtime.shader import BindingType
from vkmnn.shader_files.lock import LOCK_SCHEMA
from vkmnn.shaders import ShaderLibrary, all_shaders, load_shader
from vkmnn.shaders.packed import MANIFEST_SCHEMA

ROOT = Path(__file__).resolve().parents[2]
MANY = """\
{# A comment that is much longer than a line of Python may be, so that it has to be wrapped. And a
   second sentence, which goes into the body of the docstring and says "nothing" of interest at all
   but is long as well. #}
{{ local_size(8, 4, 2) }}
{{ tensor_inout("y", "i32") }}
{{ enum("Mode", "OFF", "ON") }}
void main()
{
    y_store(0, y_load(0) + int(MODE_ON));
}
"""


@pytest.fixture
def built(project: Project) -> Path:
    project.write("many_words.comp.j2", MANY)
    project.write("axis_less.comp.j2", MANY)
    project.write(
        "one.comp.j2",
        MANY.replace("void main", '{{ params("n:int=-1") }}\nvoid main').replace(
            "y_load(0)", "pc.n"
        ),
    )
    project.macro(
        {
            "scale.comp.j2": SCALE_ENTRY,
            "many_words.comp.j2": {"axes": {"tile_width": [4, 8], "op": ["A"]}},
            "axis_less.comp.j2": {},
            "one.comp.j2": {},
        }
    )
    writing.write(project.build(), project.root)
    return project.root


@pytest.fixture
def packed(built: Path, project: Project) -> Path:
    """The same folder with its shaders packed, as a wheel has them."""
    writing.pack(project.build(), built)
    return built


@pytest.fixture
def kernels(built: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, reading the lock next to it."""
    spec = importlib.util.spec_from_file_location("generated_kernels", built / "kernels.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "generated_kernels", module)
    spec.loader.exec_module(module)
    return module


def test_a_variant_by_its_axes(kernels: ModuleType, project: Project) -> None:
    shader = kernels.scale(dtype="f16", load="buffer")
    assert shader.name == "scale_f16_buffer"
    assert [(b.name, b.index, b.type, b.access, b.format) for b in shader.bindings] == [
        ("x", 0, BindingType.STORAGE, "r", "f16vec4"),
        ("y", 1, BindingType.STORAGE, "w", "f16vec4"),
    ]
    assert shader.push_constant_size == 20
    assert shader.requires == {"storage16"}
    assert shader.local_size == (64, 1, 1)
    assert [(s.name, s.id, s.type, s.default) for s in shader.spec_constants] == [
        ("local_size_x", 0, "uint", 64),
        ("local_size_y", 1, "uint", 1),
        ("local_size_z", 2, "uint", 1),
        ("SHIFT", 3, "float", 0.5),
    ]
    assert shader.spirv() == project.build().spirv["scale_f16_buffer"]
    assert kernels.scale(dtype="f16", load="buffer") is shader
    assert kernels.scale(dtype="f32", load="texel").bindings[0].type is BindingType.TEXEL
    assert kernels.many_words(tile_width=8, op="A").name == "many_words_8_a"
    assert kernels.axis_less().name == "axis_less"
    assert kernels.Mode.ON == 1
    assert repr(kernels.Mode.ON) == "<Mode.ON: 1>"
    assert get_args(kernels.ScaleDtype) == ("f32", "f16")
    assert {"scale", "ScaleParams", "ScaleLoad", "Mode", "axis_less"} <= set(dir(kernels))


def test_names_and_arguments_that_do_not_exist(kernels: ModuleType) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'scales'"):
        kernels.scales  # noqa: B018
    with pytest.raises(TypeError, match=r"scale\(\) missing .* 'load'"):
        kernels.scale(dtype="f16")
    with pytest.raises(TypeError, match=r"scale\(\) got an unexpected keyword argument 'from'"):
        kernels.scale(dtype="f16", load="buffer", **{"from": 1})
    assert kernels.scale(load="texel", dtype="f32").name == "scale_f32_texel"


def test_wrong_axes_say_what_exists(kernels: ModuleType) -> None:
    with pytest.raises(ShaderError, match="dtype is one of: f32, f16"):
        kernels.scale(dtype="f64", load="buffer")
    with pytest.raises(ShaderError) as caught:
        kernels.scale(dtype="f16", load="texel")
    assert "dtype=f16, load=texel is not built" in str(caught.value)
    assert "with load=texel, dtype is one of: f32" in str(caught.value)
    assert "with dtype=f16, load is one of: buffer" in str(caught.value)
    with pytest.raises(ShaderError, match="'F16' does not exist"):
        kernels.scale(dtype="F16", load="buffer")


def test_params_pack_as_std430(kernels: ModuleType) -> None:
    params = kernels.ScaleParams(n4=7, steps=(1, 2, 3))
    assert params.alpha == 1.0
    assert params.pack() == struct.pack("<If3I", 7, 1.0, 1, 2, 3)
    assert kernels.OneParams().pack() == struct.pack("<i", -1)


def test_params_are_values(kernels: ModuleType) -> None:
    params = kernels.ScaleParams(n4=7, steps=(1, 2, 3))
    assert repr(params) == "ScaleParams(n4=7, alpha=1.0, steps=(1, 2, 3))"
    assert params == kernels.ScaleParams(n4=7, steps=(1, 2, 3))
    assert hash(params) == hash(kernels.ScaleParams(n4=7, steps=(1, 2, 3)))
    assert params != kernels.ScaleParams(n4=8, steps=(1, 2, 3))
    assert params != kernels.OneParams()
    with pytest.raises(TypeError, match=r"ScaleParams\(\) missing .* 'steps'"):
        kernels.ScaleParams(n4=7)
    with pytest.raises(TypeError, match=r"ScaleParams\(\) got an unexpected .* 'n5'"):
        kernels.ScaleParams(n4=7, steps=(1, 2, 3), n5=1)
    assert copy.deepcopy(params) == params
    with pytest.raises(AttributeError):
        params.n = 1


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"n4": 1, "steps": (1, 2)}, "ScaleParams.steps must be a tuple of 3 numbers"),
        ({"n4": 1, "steps": [1, 2, 3]}, "must be a tuple of 3"),
        ({"n4": (1,), "steps": (1, 2, 3)}, "n4 is one number"),
        ({"n4": -1, "steps": (1, 2, 3)}, "n4=-1"),
        ({"n4": 2**32, "steps": (1, 2, 3)}, "n4=4294967296"),
        ({"n4": 1.5, "steps": (1, 2, 3)}, "n4=1.5"),
        ({"n4": 1, "steps": (1, 2, 3), "alpha": 1e39}, "alpha=1e+39"),
    ],
)
def test_params_are_checked(kernels: ModuleType, values: dict[str, object], message: str) -> None:
    with pytest.raises(ShaderError) as caught:
        kernels.ScaleParams(**values).pack()
    assert message in str(caught.value)


USER = """
from __future__ import annotations

from generated_kernels import Mode, ScaleDtype, ScaleParams, axis_less, many_words, scale

shader = scale(dtype="f16", load="buffer")
data: bytes = ScaleParams(n4=1, steps=(1, 2, 3)).pack()
name: str = many_words(tile_width=4, op="A").name + axis_less().name
mode: int = Mode.ON
chosen: ScaleDtype = "f32"
"""


def test_the_module_is_typed(built: Path) -> None:
    for suffix in ("py", "pyi"):
        (built / f"kernels.{suffix}").rename(built / f"generated_kernels.{suffix}")
    (built / "user.py").write_text(USER, encoding="utf-8")
    (built / "wrong.py").write_text(
        "from generated_kernels import ScaleParams, scale\n"
        'scale(dtype="f61", load="buffer")\n'
        'scale(dtype="f16")\n'
        'ScaleParams(n4="x", steps=(1, 2, 3))\n'
        "ScaleParams(n4=1)\n"
        "ScaleParams(n4=1, steps=(1, 2, 3)).n4 = 2\n",
        encoding="utf-8",
    )
    pytest.importorskip("mypy")
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--python-version=3.10",
    ]

    def check(file: str) -> str:
        done = subprocess.run(
            [*command, "--follow-imports=silent", file],
            capture_output=True,
            text=True,
            timeout=1800,
            cwd=built,
            env={"MYPYPATH": str(ROOT), "PATH": "", "HOME": str(built)},
            check=False,
        )
        return done.stdout + done.stderr

    assert check("user.py") == ""
    assert check("generated_kernels.pyi") == ""
    wrong = check("wrong.py").splitlines()
    errors = [line.split(":")[1] for line in wrong if ": error: " in line]
    assert errors == ["2", "3", "4", "5", "6"]


@pytest.mark.skipif(
    shutil.which("ruff") is None and importlib.util.find_spec("ruff") is None, reason="no ruff"
)
def test_the_module_is_formatted(built: Path) -> None:
    config = ["--config", str(ROOT / "pyproject.toml")]
    paths = [str(built / name) for name in ("kernels.py", "kernels.pyi")]
    for command in (["format", "--check", "--diff"], ["check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, *config, *paths],
            capture_output=True,
            text=True,
            timeout=1800,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_a_library_is_its_folder(kernels: ModuleType, built: Path) -> None:
    here = ShaderLibrary(built)
    assert [shader.name for shader in here.all()] == sorted(shader.name for shader in here.all())
    assert here.load("scale_f32_buffer") == kernels.scale(dtype="f32", load="buffer")
    assert ShaderLibrary.beside(str(built / "kernels.py")).load("axis_less") is kernels.axis_less()
    with pytest.raises(ShaderError, match="no shader variant 'unary_map_f32_buffer'"):
        here.load("unary_map_f32_buffer")


def test_packed_shaders_are_those_that_are_compiled_on_demand(
    built: Path, project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    demanded = ShaderLibrary(built)
    shaders = demanded.all()
    modules = [shader.spirv() for shader in shaders]
    writing.pack(project.build(), built)
    shutil.rmtree(built / "glsl")
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(built / "empty"))
    packed = ShaderLibrary(built)
    assert packed.variants() == demanded.variants()
    assert [shader.spirv() for shader in packed.all()] == modules
    for one, other in zip(packed.all(), shaders, strict=True):
        facts = ("name", "bindings", "spec_constants", "requires", "local_size", "subgroup_size")
        assert [getattr(one, f) for f in facts] == [getattr(other, f) for f in facts]
    # The user's tool may have reformatted the manifest.
    path = built / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8"))), "utf-8")
    assert ShaderLibrary(built).load("one") == packed.load("one")


def test_a_library_that_is_not_whole(packed: Path, tmp_path: Path) -> None:
    with pytest.raises(ShaderError, match=r"cannot read .*manifest\.json"):
        ShaderLibrary(tmp_path).load("one")
    (packed / "spirv.zip").unlink()
    with pytest.raises(ShaderError, match=r"cannot read .*one\.spv"):
        ShaderLibrary(packed).load("one").spirv()
    (packed / "shaders.lock").rename(packed / "aside")
    make_newer(packed / "manifest.json")
    with pytest.raises(ShaderError, match=r"manifest\.json is of another version"):
        ShaderLibrary(packed).load("one")
    (packed / "aside").rename(packed / "shaders.lock")
    make_newer(packed / "shaders.lock")
    with pytest.raises(ShaderError, match=r"shaders\.lock is of another version"):
        ShaderLibrary(packed).load("one")


def make_newer(path: Path) -> None:
    path.write_text(path.read_text("utf-8").replace('"schema": 1', '"schema": 2'), "utf-8")


def test_a_damaged_lock_is_named(built: Path) -> None:
    for text in ("", "[]", "{", '{"schema": 1}'):
        (built / "shaders.lock").write_text(text, "utf-8")
        with pytest.raises(ShaderError, match=r"shaders\.lock is damaged"):
            ShaderLibrary(built).load("one")


def test_the_run_time_reads_what_the_generator_writes() -> None:
    assert MANIFEST_SCHEMA == SCHEMA_VERSION == LOCK_SCHEMA


def test_unknown_names_have_a_hint() -> None:
    with pytest.raises(ShaderError, match="did you mean unary_map_f32_buffer"):
        load_shader("unary_map_f32_bufer")


def test_the_committed_shaders_load() -> None:
    shaders = all_shaders()
    assert [shader.name for shader in shaders] == sorted(shader.name for shader in shaders)
    for shader in shaders:
        assert shader.spirv()[:4] == b"\x03\x02\x23\x07"
        assert all(binding.index == i for i, binding in enumerate(shader.bindings))
