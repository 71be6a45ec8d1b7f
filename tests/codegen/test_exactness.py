"""A small change rebuilds exactly the variants whose GLSL or flags it changes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.codegen.conftest import Project
from vkmnn.codegen import outputs as writing
from vkmnn.codegen import render
from vkmnn.codegen.cache import Cache, cache_folder
from vkmnn.codegen.compiler import Compiler
from vkmnn.errors import ShaderError

HEAD = """\
{{ local_size(64) }}
{{ tensor_in("x", "f32") }}
{{ tensor_out("y", "f32") }}
{{ params("count:uint") }}
{% include "include/common.glsl.j2" %}
"""
MAIN = """\
void main()
{
    uint i = global_index();
    if (i < pc.count)
        y_store(i, f(x_load(i)));
}
"""
FILES = {
    "one.comp.j2": HEAD
    + '{% include "include/outer.glsl.j2" %}\nfloat f(float v) { return outer(v); }\n'
    + MAIN,
    # Only the variants with op SQUARE see the include.
    "two.comp.j2": HEAD
    + '{% if op == "SQUARE" %}\n{% include "include/inner.glsl.j2" %}\n'
    + "float f(float v) { return inner(v); }\n"
    + "{% else %}\nfloat f(float v) { return v + {{ n }}.0; }\n{% endif %}\n"
    + MAIN,
    "three.comp.j2": HEAD + "float f(float v) { return v * 3.0; }\n" + MAIN,
    "include/outer.glsl.j2": '{% include "include/inner.glsl.j2" %}\n'
    "float outer(float v) { return inner(v) + 4.0; }\n",
    "include/inner.glsl.j2": "float inner(float v) { return v * v * 5.0; }\n",
    "include/common.glsl.j2": "uint global_index() { return gl_GlobalInvocationID.x; }\n",
}
MACRO: dict[str, dict[str, object]] = {
    "one.comp.j2": {"axes": {"k": [1, 2]}},
    "two.comp.j2": {"axes": {"op": ["SQUARE", "ADD"], "n": [1, 2]}},
    "three.comp.j2": {},
}
# k is not used in `one`: its variants have the same code, and share one entry of the cache.
ONE, SQUARE, ADD, THREE = ["one_1"], ["two_square_1"], ["two_add_1", "two_add_2"], ["three"]


@pytest.fixture
def made(bare: Project, compiler: Compiler) -> Project:
    project = Project(bare.root / "made", compiler)
    for name, text in FILES.items():
        project.write(name, text)
    project.macro(MACRO)
    compile_all = project.build(cache=Cache(cache_folder()), jobs=1)
    assert set(compile_all.compiled) >= {*ONE, *SQUARE, *ADD, *THREE}
    writing.write(compile_all, project.root)
    return project


def changed(project: Project) -> tuple[list[str], list[str]]:
    """Build again; return which variants were compiled and which outputs changed."""
    built = project.build(cache=Cache(cache_folder()), jobs=1)
    return sorted(built.compiled), writing.write(built, project.root).names("changed")


@pytest.mark.parametrize(
    ("file", "old", "new", "compiled", "differ"),
    [
        ("three.comp.j2", "3.0", "6.0", THREE, THREE),
        ("two.comp.j2", "}}.0", "}}.5", ADD, ADD),
        ("two.comp.j2", "inner(v);", "inner(-v);", SQUARE, [*SQUARE, "two_square_2"]),
        ("include/outer.glsl.j2", "4.0", "7.0", ONE, [*ONE, "one_2"]),
        (
            "include/inner.glsl.j2",
            "5.0",
            "8.0",
            [*ONE, *SQUARE],
            [*ONE, "one_2", *SQUARE, "two_square_2"],
        ),
        ("three.comp.j2", "void main", "{# no change of the GLSL #}\nvoid main", [], []),
    ],
)
def test_a_small_change_of_text(
    made: Project, file: str, old: str, new: str, compiled: list[str], differ: list[str]
) -> None:
    assert FILES[file].count(old) == 1
    made.write(file, FILES[file].replace(old, new))
    found, names = changed(made)
    assert found == sorted(compiled)
    assert names == sorted(differ)
    made.write(file, FILES[file])
    assert changed(made)[0] == []


@pytest.mark.parametrize(
    ("name", "key", "value", "compiled"),
    [
        ("two.comp.j2", "axes", {"op": ["SQUARE", "ADD"], "n": [1, 3]}, ["two_add_3"]),
        ("two.comp.j2", "optimize", {"op=ADD": "none"}, ADD),
        ("two.comp.j2", "requires", {"op=ADD,n=2": ["spirv_1_6"]}, ["two_add_2"]),
        ("three.comp.j2", "spec", {"local_size_x": 32}, THREE),
        ("three.comp.j2", "op_type", "Three", []),
        ("two.comp.j2", "exclude", [{"op": "ADD", "n": 2}], []),
    ],
)
def test_a_small_change_of_macro_json(
    made: Project, name: str, key: str, value: object, compiled: list[str]
) -> None:
    made.macro({**MACRO, name: {**MACRO[name], key: value}})
    assert changed(made)[0] == sorted(compiled)
    made.macro(MACRO)
    assert changed(made)[0] == []


def test_an_unchanged_template_is_not_rendered(
    made: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[str] = []
    real = render.Renderer.render_file

    def spy(self: render.Renderer, file: str, *rest: object, **more: object) -> object:
        rendered.append(file)
        return real(self, file, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(render.Renderer, "render_file", spy)
    # A new entry moves the lines of those below it.
    made.write("a.comp.j2", FILES["three.comp.j2"])
    made.macro({"a.comp.j2": {}, **MACRO})
    made.write("three.comp.j2", FILES["three.comp.j2"].replace("3.0", "9.0"))
    assert changed(made)[0] == ["three"]  # `a` is the text that `three` was
    assert rendered == ["a.comp.j2", "three.comp.j2"]


def test_two_folders_give_the_same_bytes(made: Project, tmp_path: Path, compiler: Compiler) -> None:
    """With the cache and without, by one thread and by several, written at once and in parts."""

    def outputs(root: Path) -> dict[str, bytes]:
        files = (path for path in root.rglob("*") if path.is_file())
        found = {path.relative_to(root).as_posix(): path.read_bytes() for path in files}
        return {name: data for name, data in found.items() if not name.startswith("glsl/")}

    expected = outputs(made.root)
    assert set(expected) == {"kernels.py", "kernels.pyi", "shaders.lock"}
    other = Project(tmp_path / "a b" / "ü", compiler)
    for name in reversed(FILES):
        other.write(name, FILES[name])
    other.macro(dict(reversed(MACRO.items())))
    for names in ({"two"}, {"three", "one"}):
        writing.write(other.build(jobs=3, only=frozenset(names)), other.root)
        assert outputs(other.root) != expected or names == {"three", "one"}
    assert outputs(other.root) == expected


# --- all or nothing ------------------------------------------------------------------------------


class DiskFullError(OSError):
    pass


@pytest.mark.parametrize("after", [0, 1])
def test_a_full_disk_leaves_the_old_outputs(
    made: Project, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = {p: p.read_bytes() for p in made.root.rglob("*") if p.is_file() and p.suffix != ".j2"}
    made.write("one.comp.j2", "{# Described. #}\n" + FILES["one.comp.j2"])
    made.write("include/common.glsl.j2", FILES["include/common.glsl.j2"].replace(".x", ".y"))
    built = made.build()
    real = Path.write_text
    left = [after]

    def write_text(self: Path, *args: Any, **options: Any) -> int:
        left[0] -= 1
        if left[0] < 0:
            raise DiskFullError("no space left on device")
        return real(self, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_text)
        with pytest.raises(DiskFullError):
            writing.write(built, made.root)
    after_failure = {p: p.read_bytes() for p in made.root.rglob("*") if p.is_file()}
    assert {p: data for p, data in after_failure.items() if p.suffix != ".j2"} == before


def test_a_lock_that_cannot_be_made_is_told(
    made: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The cache is a file where a folder belongs: nothing is written."""
    built = made.build()
    blocked = tmp_path / "blocked"
    blocked.write_text("")
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(blocked / "cache"))
    with pytest.raises(ShaderError, match="cannot be locked") as error:
        writing.write(built, made.root)
    assert "VKMNN_CACHE_DIR" in str(error.value)


KILLED = """
import sys, time
from pathlib import Path
from vkmnn.codegen.cli import app
done = 0
real = Path.replace
def replace(self, target):
    global done
    if ".staging" in str(self):
        done += 1
        if done > {renames}:
            print("now", flush=True)
            time.sleep(60)
    return real(self, target)
Path.replace = replace
app(["--shaders", {root!r}, "--no-cache"])
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends a signal")
@pytest.mark.parametrize("renames", [0, 1])
def test_a_killed_build_leaves_whole_files_and_is_completed_by_the_next(
    made: Project, renames: int
) -> None:
    before = outputs_of(made.root)
    made.write("include/common.glsl.j2", FILES["include/common.glsl.j2"].replace(".x", ".z"))
    made.write("one.comp.j2", "{# Described. #}\n" + FILES["one.comp.j2"])
    wanted = expected_outputs(made)
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED.format(renames=renames, root=str(made.root))],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"now\n"
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    process.stdout.close()
    found = outputs_of(made.root)
    assert set(found) == set(before)
    for name, data in found.items():
        assert data in (before[name], wanted[name]), name
    assert sum(found[name] != before[name] for name in found) == renames
    assert (made.root / ".staging").is_dir()
    writing.write(made.build(), made.root)
    assert outputs_of(made.root) == wanted
    assert not (made.root / ".staging").exists()


def outputs_of(root: Path) -> dict[str, bytes]:
    names = ("shaders.lock", "kernels.py", "kernels.pyi")
    return {name: (root / name).read_bytes() for name in names}


def expected_outputs(project: Project) -> dict[str, bytes]:
    content = writing.assemble(project.build(), None)
    texts = writing.text_outputs(content)
    return {name: text.encode() for name, text in texts.items()}


def test_nothing_is_written_when_one_variant_fails(made: Project) -> None:
    before = outputs_of(made.root)
    made.write("three.comp.j2", FILES["three.comp.j2"].replace("3.0", "3.0 *"))
    made.write("one.comp.j2", FILES["one.comp.j2"].replace("outer(v)", "outer(v, v)"))
    done = subprocess.run(
        [sys.executable, "-m", "vkmnn.codegen", "--shaders", str(made.root)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        check=False,
    )
    assert done.returncode == 1
    assert "one.comp.j2:7: " in done.stderr
    assert "three.comp.j2:6: " in done.stderr
    assert outputs_of(made.root) == before
