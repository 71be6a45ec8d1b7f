"""Shaders of a checkout: compiled when they are needed, by as many as need them, once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.codegen.conftest import SCALE, Project
from vkmnn.codegen import compilers
from vkmnn.codegen import outputs as writing
from vkmnn.codegen.cache import Cache
from vkmnn.codegen.render import Renderer
from vkmnn.errors import ShaderError
from vkmnn.shader_files.store import store_folders
from vkmnn.shaders.library import ShaderLibrary, is_pending, prepare

NAMES = ["scale_f16_buffer", "scale_f32_buffer", "scale_f32_texel"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def locked(project: Project) -> Project:
    """A project with a lock, none of whose shaders have been compiled yet."""
    writing.write(project.build(), project.root)
    return project


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The variants that were rendered, in order."""
    seen: list[str] = []
    real = Renderer.render

    def spy(self: Renderer, variant: object, **options: object) -> object:
        seen.append(variant.name)  # type: ignore[attr-defined]
        return real(self, variant, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(Renderer, "render", spy)
    return seen


@pytest.fixture
def without_compilers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Remove all compilers."""

    def take() -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.delenv(compilers.ENVIRONMENT_VARIABLE, raising=False)
        monkeypatch.setattr(compilers, "bundled_glslang", lambda: None)
        monkeypatch.setattr(compilers, "_bundled_slang", lambda: None)

    return take


def files(project: Project) -> list[str]:
    return [path.name for path in Cache.of(project.root).files()]


def test_only_what_is_needed_is_rendered_and_compiled(locked: Project, rendered: list[str]) -> None:
    library = ShaderLibrary(locked.root)
    assert [name for name, _, _ in library.variants()] == NAMES
    shader = library.find("scale", {"dtype": "f32", "load": "texel"})
    assert (rendered, len(files(locked))) == (["scale_f32_texel"], 1)
    assert is_pending(shader)
    code = shader.spirv()
    assert (rendered, len(files(locked))) == (["scale_f32_texel"], 2)
    assert not is_pending(shader)
    assert code == locked.build().spirv["scale_f32_texel"]


def test_what_was_compiled_needs_no_generator(
    locked: Project, without_compilers: Callable[[], None]
) -> None:
    before = [shader.spirv() for shader in ShaderLibrary(locked.root).all()]
    without_compilers()
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['jinja2', 'vkmnn.codegen']))\n"
        "from vkmnn.shaders import ShaderLibrary\n"
        f"print([s.spirv().hex()[-64:] for s in ShaderLibrary({str(locked.root)!r}).all()])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.stdout.strip() == str([module.hex()[-64:] for module in before]), done.stderr


@pytest.mark.parametrize("missing", ["jinja2", "compiler"])
def test_what_is_missing_is_named(
    locked: Project,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    without_compilers: Callable[[], None],
) -> None:
    if missing == "jinja2":
        monkeypatch.setitem(sys.modules, "vkmnn.codegen.on_demand", None)
        monkeypatch.delitem(sys.modules, "vkmnn.codegen.on_demand")
        monkeypatch.delitem(sys.modules, "vkmnn.codegen.render")
        monkeypatch.delitem(sys.modules, "vkmnn.codegen.build")
        monkeypatch.setitem(sys.modules, "jinja2", None)
    else:
        without_compilers()
    library = ShaderLibrary(locked.root)
    with pytest.raises(ShaderError, match=r"pip install 'vkmnn\[codegen\]'"):
        library.load(NAMES[0]).spirv()


def test_a_stale_lock_is_an_error(locked: Project) -> None:
    kept = ShaderLibrary(locked.root).load(NAMES[0]).spirv()
    locked.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    library = ShaderLibrary(locked.root)
    assert library.load(NAMES[0]).spirv() == kept  # as before: codegen has not been run
    with pytest.raises(ShaderError, match=rf"newer than their lock: '{NAMES[1]}'") as caught:
        library.load(NAMES[1])
    assert "python -m vkmnn.codegen" in str(caught.value)
    with pytest.raises(ShaderError, match="newer than their lock"):
        library.all()
    writing.write(locked.build(), locked.root)
    assert ShaderLibrary(locked.root).load(NAMES[0]).spirv() != kept


def test_a_shader_that_does_not_compile_is_told_with_its_place(locked: Project) -> None:
    library = ShaderLibrary(locked.root)
    shader = library.load(NAMES[0])
    locked.write("scale.comp.j2", SCALE.replace("SHIFT *", "SHFT *"))
    path = locked.root / "shaders.lock"
    lock = json.loads(path.read_text("utf-8"))
    described = writing.describe(locked.glsl)
    path.write_text(json.dumps({**lock, "variants": described.digests}), "utf-8")
    assert shader.spirv()  # rendered before
    with pytest.raises(ShaderError, match=r"scale\.comp\.j2:20: 'SHFT'"):
        ShaderLibrary(locked.root).load(NAMES[0]).spirv()


@pytest.mark.parametrize("damage", [b"", b"{}\nx", b"\xff", None])
def test_damaged_files_are_made_again(locked: Project, damage: bytes | None) -> None:
    before = [shader.spirv() for shader in ShaderLibrary(locked.root).all()]
    for path in Cache.of(locked.root).files():
        path.write_bytes(path.read_bytes()[:-4] if damage is None else damage)
    assert [shader.spirv() for shader in ShaderLibrary(locked.root).all()] == before


def test_threads_share_a_library(locked: Project) -> None:
    library = ShaderLibrary(locked.root)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda name: library.load(name).spirv(), NAMES * 8))
    assert found == [library.load(name).spirv() for name in NAMES] * 8


def test_processes_share_a_folder(locked: Project) -> None:
    """All start with an empty cache; none fails, and all get the same result."""
    code = (
        "import hashlib\n"
        "from vkmnn.shaders import ShaderLibrary\n"
        f"library = ShaderLibrary({str(locked.root)!r})\n"
        "print(hashlib.sha256(b''.join(s.spirv() for s in library.all())).hexdigest())\n"
    )
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT)
        for _ in range(4)
    ]
    said = {process.communicate(timeout=300)[0] for process in running}
    assert [process.returncode for process in running] == [0] * 4
    assert len(said) == 1
    assert not [name for name in files(locked) if name.endswith(".tmp")]


def test_several_are_compiled_at_once(locked: Project) -> None:
    library = ShaderLibrary(locked.root)
    shaders = library.all()
    assert all(map(is_pending, shaders))
    prepare(shaders)
    assert not any(map(is_pending, shaders))
    before = {path: path.stat().st_mtime_ns for path in Cache.of(locked.root).files()}
    prepare(shaders)
    assert {path: path.stat().st_mtime_ns for path in Cache.of(locked.root).files()} == before


# --- where they lie ------------------------------------------------------------------------------


def test_a_project_keeps_them_in_its_build_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = tmp_path / "cache"
    monkeypatch.setenv("VKMNN_CACHE_DIR", str(shared))
    monkeypatch.delenv("VKMNN_SHADER_CACHE", raising=False)
    shaders = tmp_path / "project" / "package" / "shaders"
    shaders.mkdir(parents=True)
    assert store_folders(shaders) == (shared / "codegen",)
    (tmp_path / "project" / "pyproject.toml").touch()
    own = tmp_path / "project" / "build" / "shaders"
    assert store_folders(shaders) == (own, shared / "codegen")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert store_folders(shaders) == (shared / "codegen", own)
    monkeypatch.setenv("VKMNN_SHADER_CACHE", str(tmp_path / "all"))
    assert store_folders(shaders) == (tmp_path / "all",)


def test_git_ignores_the_folder(locked: Project) -> None:
    (locked.root / "pyproject.toml").touch()
    package = locked.root / "package"
    locked.glsl.rename(locked.root / "aside")
    package.mkdir()
    (locked.root / "aside").rename(package / "glsl")
    (locked.root / "shaders.lock").rename(package / "shaders.lock")
    ShaderLibrary(package).load(NAMES[0]).spirv()
    folder = locked.root / "build" / "shaders"
    assert (folder / ".gitignore").read_text() == "*\n"
    assert len(list(folder.iterdir())) == 3


def test_a_folder_that_cannot_be_written_costs_time_alone(
    locked: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VKMNN_SHADER_CACHE", str(tmp_path / "file" / "cache"))
    code = ShaderLibrary(locked.root).load(NAMES[0]).spirv()
    assert code == locked.build().spirv[NAMES[0]]


# --- packed --------------------------------------------------------------------------------------


def test_packed_shaders_are_used_while_they_fit_the_lock(locked: Project) -> None:
    writing.pack(locked.build(), locked.root)
    packed = ShaderLibrary(locked.root).load(NAMES[0])
    assert not packed.by_source
    locked.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    writing.write(locked.build(), locked.root)
    again = ShaderLibrary(locked.root).load(NAMES[0])
    assert again.by_source
    assert again.spirv() != packed.spirv()
