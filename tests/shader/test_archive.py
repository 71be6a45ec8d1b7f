"""The SPIR-V of a wheel: one archive, of which each module is read by itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkmnn.errors import ShaderError
from vkmnn.shaders import ShaderLibrary
from vkmnn.shaders.archive import ARCHIVE_FILE, pack
from vkmnn.shaders.library import BUILTIN

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    name for name, template, _ in BUILTIN.variants() if template in ("copy", "raster", "unary")
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the shaders with some of the modules."""
    (tmp_path / "spirv").mkdir()
    shutil.copy(BUILTIN.folder / "manifest.json", tmp_path)
    for name in NAMES:
        shutil.copy(BUILTIN.folder / "spirv" / f"{name}.spv", tmp_path / "spirv")
    return tmp_path


def test_packed_modules_are_the_files(folder: Path) -> None:
    pack(folder)
    assert not (folder / "spirv").exists()
    library = ShaderLibrary(folder)
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(lambda name: library.load(name).spirv(), NAMES * 3))
    assert packed == [BUILTIN.load(name).spirv() for name in NAMES] * 3
    whole = sum(map(len, packed)) / 3
    assert (folder / ARCHIVE_FILE).stat().st_size < whole / 2


@pytest.mark.parametrize("changed", [False, True], ids=["as written", "in another order"])
def test_every_variant_is_found_in_the_manifest(tmp_path: Path, changed: bool) -> None:
    """One by one, as processes do that need some of them; no other is taken for one."""
    manifest = json.loads((BUILTIN.folder / "manifest.json").read_text("utf-8"))
    if changed:
        turned = dict(reversed(manifest["variants"].items()))
        text = json.dumps({**manifest, "variants": turned}, indent=2)
        (tmp_path / "manifest.json").write_text(text)
    else:
        shutil.copy(BUILTIN.folder / "manifest.json", tmp_path)
    names = list(manifest["variants"])
    library = ShaderLibrary(tmp_path)
    for name in names:
        assert library.load(name).digest == manifest["variants"][name]["spirv_sha256"]
    for missing in ("", "a", "zzz", f"{names[5]}_", names[5][:-1]):
        with pytest.raises(ShaderError, match="no shader variant"):
            ShaderLibrary(tmp_path).load(missing)


def test_the_same_modules_make_the_same_archive(folder: Path) -> None:
    other = folder / "other"
    shutil.copytree(folder / "spirv", other / "spirv", copy_function=shutil.copyfile)
    for path in other.rglob("*.spv"):
        os.utime(path, (0, 0))
    pack(folder)
    pack(other)
    assert (folder / ARCHIVE_FILE).read_bytes() == (other / ARCHIVE_FILE).read_bytes()


def test_packing_needs_the_standard_library_alone(folder: Path) -> None:
    """setup.py runs it in an environment that has nothing else."""
    code = f"import runpy; from pathlib import Path; runpy.run_path({str(ROOT)!r} + "
    code += f"'/vkmnn/shaders/archive.py')['pack'](Path({str(folder)!r}))"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True, timeout=60)
    assert ShaderLibrary(folder).load(NAMES[0]).spirv() == BUILTIN.load(NAMES[0]).spirv()


def test_a_file_is_preferred(folder: Path) -> None:
    """Whoever builds shaders of their own in an installed package gets them."""
    path = folder / "spirv" / f"{NAMES[0]}.spv"
    pack(folder)
    path.parent.mkdir()
    path.write_bytes(b"own")
    assert ShaderLibrary(folder).load(NAMES[0]).spirv() == b"own"
    assert ShaderLibrary(folder).load(NAMES[1]).spirv() == BUILTIN.load(NAMES[1]).spirv()


@pytest.mark.parametrize("damage", ["cut", "emptied", "another", "module"])
def test_damage_is_named(folder: Path, damage: str) -> None:
    pack(folder)
    path = folder / ARCHIVE_FILE
    data = path.read_bytes()
    if damage == "another":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("something", b"else")
    elif damage == "module":
        path.write_bytes(data[:64] + bytes(64) + data[128:])
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "cut" else b"")
    first = min(NAMES)
    with pytest.raises(ShaderError, match=rf"cannot read '{first}' from .*{ARCHIVE_FILE}"):
        ShaderLibrary(folder).load(first).spirv()


def test_without_file_and_archive(folder: Path) -> None:
    shutil.rmtree(folder / "spirv")
    with pytest.raises(ShaderError, match=r"cannot read .*spirv"):
        ShaderLibrary(folder).load(NAMES[0]).spirv()
