"""The SPIR-V of a wheel: one archive, from which each module is read separately."""

from __future__ import annotations

import hashlib
import json
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vkmnn.codegen.manifest import dump_manifest
from vkmnn.errors import ShaderError
from vkmnn.shader_files.archive import ARCHIVE_FILE, pack
from vkmnn.shaders import ShaderLibrary
from vkmnn.shaders.library import BUILTIN

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    name for name, template, _ in BUILTIN.variants() if template in ("copy", "raster", "unary")
]


@pytest.fixture
def folder(tmp_path: Path, built: dict[str, bytes]) -> Path:
    """A folder of packed shaders, with some of the built-in ones."""
    write_manifest(tmp_path, built)
    pack(tmp_path / ARCHIVE_FILE, built)
    return tmp_path


@pytest.fixture(scope="module")
def built() -> dict[str, bytes]:
    BUILTIN.prepare(NAMES)
    return {name: BUILTIN.load(name).spirv() for name in NAMES}


def write_manifest(folder: Path, built: dict[str, bytes]) -> None:
    variants = {}
    for name, code in built.items():
        described = BUILTIN._entry(name)
        assert described is not None
        variants[name] = {**described, "spirv_sha256": hashlib.sha256(code).hexdigest()}
    empty: dict[str, object] = {"lock": "", "compiler": "", "enums": {}, "templates": {}}
    text = dump_manifest({**empty, "variants": variants})
    (folder / "manifest.json").write_text(text, "utf-8")


def test_packed_modules_are_those_that_were_compiled(folder: Path, built: dict[str, bytes]) -> None:
    library = ShaderLibrary(folder)
    with ThreadPoolExecutor(8) as pool:
        packed = list(pool.map(lambda name: library.load(name).spirv(), NAMES * 3))
    assert packed == [built[name] for name in NAMES] * 3
    whole = sum(map(len, packed)) / 3
    assert (folder / ARCHIVE_FILE).stat().st_size < whole / 2


@pytest.mark.parametrize("changed", [False, True], ids=["as written", "in another order"])
def test_every_variant_is_found_in_the_manifest(folder: Path, changed: bool) -> None:
    """One by one, like processes that need some of them; no other module is returned instead."""
    manifest = json.loads((folder / "manifest.json").read_text("utf-8"))
    if changed:
        turned = dict(reversed(manifest["variants"].items()))
        text = json.dumps({**manifest, "variants": turned}, indent=2)
        (folder / "manifest.json").write_text(text)
    names = list(manifest["variants"])
    library = ShaderLibrary(folder)
    for name in names:
        assert library.load(name).digest == manifest["variants"][name]["spirv_sha256"]
    for missing in ("", "a", "zzz", f"{names[5]}_", names[5][:-1]):
        with pytest.raises(ShaderError, match="no shader variant"):
            ShaderLibrary(folder).load(missing)


def test_the_same_modules_make_the_same_archive(folder: Path, built: dict[str, bytes]) -> None:
    other = folder / "other.zip"
    pack(other, dict(reversed(built.items())))
    assert (folder / ARCHIVE_FILE).read_bytes() == other.read_bytes()


def test_a_file_is_preferred(folder: Path, built: dict[str, bytes]) -> None:
    """A user's module in an installed package takes precedence."""
    path = folder / "spirv" / f"{NAMES[0]}.spv"
    path.parent.mkdir()
    path.write_bytes(b"own")
    assert ShaderLibrary(folder).load(NAMES[0]).spirv() == b"own"
    assert ShaderLibrary(folder).load(NAMES[1]).spirv() == built[NAMES[1]]


@pytest.mark.parametrize("damage", ["cut", "emptied", "another", "module"])
def test_damage_is_named(folder: Path, damage: str) -> None:
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
    (folder / ARCHIVE_FILE).unlink()
    with pytest.raises(ShaderError, match=r"cannot read .*spirv"):
        ShaderLibrary(folder).load(NAMES[0]).spirv()
