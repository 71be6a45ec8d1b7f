from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import zlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.codegen.conftest import SCALE, SCALE_ENTRY, Project
from vkmnn.base.cache_files import NO_FOLDER
from vkmnn.codegen import build as building
from vkmnn.codegen import outputs as writing
from vkmnn.codegen.build import BuildFailedError
from vkmnn.codegen.cache import Cache, cache_folder
from vkmnn.codegen.compiler import Compiled, Compiler
from vkmnn.codegen.compilers import ExternalGlslang
from vkmnn.codegen.features import Target
from vkmnn.shader_files.archive import Archive

PLAIN = """\
{{ local_size(8) }}
{{ tensor_in("x", "f32") }}
{{ tensor_out("y", "f32") }}
void main()
{
    uint i = gl_GlobalInvocationID.x;
    BODY
}
"""


def outputs(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "glsl" not in path.relative_to(root).parts
    }


def failures(project: Project, files: Mapping[str, str], **entries: object) -> list[str]:
    for name, text in files.items():
        project.write(name, text)
    (project.glsl / "scale.comp.j2").unlink()
    project.macro({f"{name}.comp.j2": entry for name, entry in entries.items()})
    with pytest.raises(BuildFailedError) as caught:
        project.build()
    return [str(error) for error in caught.value.failures]


def test_builds_every_variant(project: Project) -> None:
    changes = writing.write(project.build(), project.root)
    names = ["scale_f16_buffer", "scale_f32_buffer", "scale_f32_texel"]
    assert changes.names("added") == names
    assert changes.counts() == "3 added"
    assert sorted(outputs(project.root)) == ["kernels.py", "kernels.pyi", "shaders.lock"]
    lock = json.loads((project.root / "shaders.lock").read_text(encoding="utf-8"))
    assert list(lock["variants"]) == names
    assert all(re.fullmatch("[0-9a-f]{32}", digest) for digest in lock["variants"].values())
    assert lock["templates"]["scale"] == {
        "doc": "y = alpha * x on flat groups of four.",
        "axes": SCALE_ENTRY["axes"],
        "params": ["n4:uint", "alpha:float=1.0", "steps:uint[3]"],
    }
    writing.pack(project.build(), project.root)
    manifest = json.loads((project.root / "manifest.json").read_text(encoding="utf-8"))
    archive = Archive(project.root / "spirv.zip")
    assert manifest["templates"]["scale"]["doc"] == "y = alpha * x on flat groups of four."
    half = manifest["variants"]["scale_f16_buffer"]
    assert half["requires"] == ["storage16"]
    assert half["axes"] == {"dtype": "f16", "load": "buffer"}
    assert half["bindings"] == [
        {"name": "x", "index": 0, "type": "storage", "access": "r", "format": "f16vec4"},
        {"name": "y", "index": 1, "type": "storage", "access": "w", "format": "f16vec4"},
    ]
    assert half["push_constant_size"] == 20
    assert half["spec_constants"][3] == {"name": "SHIFT", "id": 3, "type": "float", "default": 0.5}
    assert half["local_size"] == [64, 1, 1]
    texel = manifest["variants"]["scale_f32_texel"]
    assert texel["bindings"][0]["format"] == "rgba32f"
    for name, entry in manifest["variants"].items():
        spirv = archive.read(name)
        assert hashlib.sha256(spirv).hexdigest() == entry["spirv_sha256"]
        assert len(spirv) == entry["bytes"]


def test_two_builds_in_two_places_are_equal(project: Project, tmp_path: Path) -> None:
    writing.write(project.build(jobs=1), project.root)
    other = Project(tmp_path / "quite" / "elsewhere", project._compiler)
    reordered = dict(reversed(SCALE_ENTRY.items()))
    other.write("scale.comp.j2", SCALE)
    other.macro({"scale.comp.j2": reordered})
    writing.write(other.build(jobs=3), other.root)
    assert outputs(project.root) == outputs(other.root)


def test_outputs_hold_no_path_and_no_time(project: Project) -> None:
    writing.write(project.build(), project.root)
    for name, data in outputs(project.root).items():
        assert str(project.root).encode() not in data, name
        assert not re.search(rb"20\d\d-\d\d-\d\d", data), name


def test_an_unchanged_build_touches_nothing(project: Project) -> None:
    writing.write(project.build(), project.root)
    before = {path: path.stat().st_mtime_ns for path in project.root.rglob("*")}
    assert writing.write(project.build(), project.root).rows == ()
    assert {path: path.stat().st_mtime_ns for path in project.root.rglob("*")} == before


def test_removed_variants_go_from_the_lock(project: Project) -> None:
    writing.write(project.build(), project.root)
    project.macro({"scale.comp.j2": {"axes": {"dtype": ["f32"], "load": ["buffer"]}}})
    changes = writing.write(project.build(), project.root)
    assert changes.names("removed") == ["scale_f16_buffer", "scale_f32_texel"]
    lock = json.loads((project.root / "shaders.lock").read_text(encoding="utf-8"))
    assert list(lock["variants"]) == ["scale_f32_buffer"]


# --- cache ---------------------------------------------------------------------------------------


def test_the_cache_serves_what_did_not_change(project: Project) -> None:
    cache = Cache(cache_folder())
    assert len(project.build(cache=cache).compiled) == 3
    assert len(project.build(cache=cache).compiled) == 0
    assert len(project.build(cache=None).compiled) == 3
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "2.0 * SHIFT *"))
    assert len(project.build(cache=cache).compiled) == 3
    project.write("scale.comp.j2", SCALE)
    project.write("include/common.glsl.j2", "uint global_index() { return 7u; }\n")
    assert len(project.build(cache=cache).compiled) == 3


def test_flags_are_part_of_the_key(project: Project) -> None:
    cache = Cache(cache_folder())
    project.build(cache=cache)
    project.macro({"scale.comp.j2": {**SCALE_ENTRY, "optimize": {"dtype=f16": "none"}}})
    built = project.build(cache=cache)
    assert len(built.compiled) == 1
    assert built.variants["scale_f16_buffer"]["optimized"] == "none"
    assert built.variants["scale_f32_buffer"]["optimized"] == "-O"
    project.macro(
        {
            "scale.comp.j2": {
                **SCALE_ENTRY,
                "requires": {"*": ["spirv_1_6"], "dtype=f16": ["storage16"]},
            }
        }
    )
    built = project.build(cache=cache)
    assert len(built.compiled) == 3
    assert built.variants["scale_f32_buffer"]["target"] == "vulkan1.3 spirv1.6"
    assert built.variants["scale_f32_buffer"]["local_size"] == [64, 1, 1]


def test_macro_json_sets_defaults_of_spec_constants(project: Project) -> None:
    cache = Cache(cache_folder())
    project.build(cache=cache)
    spec = {"local_size_x": 128, "SHIFT": 2}
    project.macro({"scale.comp.j2": {**SCALE_ENTRY, "spec": spec}})
    built = project.build(cache=cache)
    assert len(built.compiled) == 3
    entry = built.variants["scale_f32_buffer"]
    assert entry["local_size"] == [128, 1, 1]
    assert entry["spec_constants"][0]["default"] == 128
    assert entry["spec_constants"][3]["default"] == 2.0


def test_damaged_entries_are_compiled_again(project: Project) -> None:
    cache = Cache(cache_folder())
    project.build(cache=cache)
    modules = sorted(path for path in cache.files() if not path.suffix)
    for damage, path in zip((b"", b"{}\nx", None), modules, strict=True):
        path.write_bytes(path.read_bytes()[:-4] if damage is None else damage)
    assert len(project.build(cache=cache).compiled) == 3
    (record,) = cache.folder.glob("*.json")
    good = record.read_bytes()
    for damaged in (b"", good[:-1], good.replace(b"Scale", b"scale"), b"\xff" + good, b"1\n2"):
        record.write_bytes(damaged)
        assert project.build(cache=cache).templates["scale"]["op_type"] == "Scale"
    assert record.read_bytes() == good


@pytest.mark.skipif(sys.platform == "win32", reason="of POSIX")
@pytest.mark.parametrize("what", ["folder", "files"])
def test_what_others_may_have_planted_is_not_used(
    project: Project, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(cache_folder())
    good = project.build(cache=cache)
    for path in cache.files():
        if not path.suffix:  # another program, and a digest that fits
            head, _, code = path.read_bytes().partition(b"\n")
            meta = json.loads(head)
            code = code[:-4] + bytes(4)
            meta["crc32"] = zlib.crc32(code)
            path.write_bytes(json.dumps(meta).encode() + b"\n" + code)
    for path in [cache.folder] if what == "folder" else cache.files():
        path.chmod(0o777 if path.is_dir() else 0o666)
    with caplog.at_level("WARNING", "vkmnn"):
        assert project.build(cache=cache).spirv == good.spirv
    (record,) = caplog.records
    assert "others may write it" in record.getMessage()


def test_a_cache_that_cannot_be_written_is_no_error(
    project: Project, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (project.root / "file").touch()
    for place in (project.root / "file" / "cache", NO_FOLDER):
        monkeypatch.setenv("VKMNN_CACHE_DIR", str(place))
        cache = Cache(cache_folder())
        with caplog.at_level("WARNING", "vkmnn"):
            for _ in range(2):
                assert len(project.build(cache=cache).compiled) == 3
        assert cache.prune(set()) == 0
    assert len(caplog.records) == 1


def test_prune_keeps_what_is_used(project: Project) -> None:
    cache = Cache(cache_folder())
    project.build(cache=cache)
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "3.0 * SHIFT *"))
    built = project.build(cache=cache)
    assert len(list(cache.files())) == 8
    assert cache.prune(built.keys) == 4
    assert len(project.build(cache=cache).compiled) == 0


# --- one template at a time ----------------------------------------------------------------------


def test_a_partial_build_keeps_the_rest(project: Project) -> None:
    writing.write(project.build(), project.root)
    before = outputs(project.root)
    project.write("half.comp.j2", PLAIN.replace("BODY", "y_store(i, 0.5 * x_load(i));"))
    project.macro({"scale.comp.j2": SCALE_ENTRY, "half.comp.j2": {}})
    project.write("scale.comp.j2", "{% broken")
    only = project.build(only=frozenset({"half"}))
    assert writing.write(only, project.root).names("added") == ["half"]
    after = outputs(project.root)
    locks = [json.loads(files["shaders.lock"])["variants"] for files in (before, after)]
    assert locks[0].items() < locks[1].items()
    project.write("scale.comp.j2", SCALE)
    writing.write(project.build(), project.root)
    assert outputs(project.root) == after


class OtherCompiler:
    """The real compiler under another name, with other bytes."""

    def __init__(self, real: Compiler) -> None:
        self._real = real
        self.identity = "other 1.0"

    def compile(self, glsl: str, target: Target, optimize: str) -> Compiled:
        return self._real.compile(glsl, target, "none")

    def disassemble(self, spirv: bytes) -> str:
        return self._real.disassemble(spirv)


def test_what_another_compiler_has_compiled_is_not_used(project: Project) -> None:
    cache = Cache(cache_folder())
    built = project.build(cache=cache)
    assert project._compiler is not None
    for compiler in (OtherCompiler(project._compiler), project._compiler):
        other = building.build(project.glsl, compiler, cache=cache)
        assert len(other.compiled) == 3
        assert other.digests == built.digests
        assert (other.spirv == built.spirv) == (compiler is project._compiler)


# --- --check -------------------------------------------------------------------------------------


def test_check_is_quiet_when_all_is_well(project: Project) -> None:
    writing.write(project.build(), project.root)
    assert writing.check(building.describe(project.glsl), project.root) == ""


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("shaders.lock", b"{}", "--- committed/shaders.lock"),
        ("shaders.lock", None, "+++ built/shaders.lock"),
        ("kernels.py", b"# edited\n", "-# edited"),
        ("kernels.pyi", None, "+++ built/kernels.pyi"),
    ],
)
def test_check_finds_stale_outputs(
    project: Project, name: str, data: bytes | None, expected: str
) -> None:
    writing.write(project.build(), project.root)
    path = project.root / name
    if data is None:
        path.unlink()
    else:
        path.write_bytes(data)
    assert expected in writing.check(building.describe(project.glsl), project.root)


@pytest.mark.parametrize("kind", ["fake", "real"])
def test_the_lock_does_not_depend_on_the_compiler(project: Project, kind: str) -> None:
    writing.write(project.build(), project.root)
    assert project._compiler is not None
    other = other_compiler(kind, project._compiler)
    assert writing.check(building.build(project.glsl, other), project.root) == ""
    project.write("scale.comp.j2", SCALE.replace("i >= pc.n4", "i > pc.n4"))
    assert '+    "scale_f32_texel": "' in writing.check(
        building.build(project.glsl, other), project.root
    )


def other_compiler(kind: str, real: Compiler) -> Compiler:
    if kind == "fake":
        return OtherCompiler(real)
    program = shutil.which("glslangValidator") or shutil.which("glslang")
    if program is None:
        pytest.skip("no second glslang on PATH")
    return ExternalGlslang(Path(program))


# --- failures ------------------------------------------------------------------------------------


def test_a_compile_error_names_the_template_line_once(project: Project) -> None:
    project.write("scale.comp.j2", SCALE.replace("SHIFT *", "SHFT *"))
    with pytest.raises(BuildFailedError) as caught:
        project.build()
    (error,) = map(str, caught.value.failures)
    first, *rest = error.splitlines()
    assert first.startswith("scale.comp.j2:20: 'SHFT' : undeclared identifier")
    assert first.endswith("[scale_f16_buffer, scale_f32_buffer, scale_f32_texel]")
    assert "glsl: value += SHFT * 0.0;" in "\n".join(rest)
    assert "   20 |     value += SHFT * {{ k }}.0;" in "\n".join(rest)


@pytest.mark.parametrize(
    ("file", "text", "place"),
    [
        ("include/common.glsl.j2", "\nuint global_index() { return 0u }\n", "include/common"),
        ("scale.comp.j2", SCALE.replace("pc.alpha;", "pc.beta;"), "scale.comp.j2:10: "),
        ("scale.comp.j2", SCALE.replace("if (i >= pc.n4)", "if (i >= pc.n4"), "scale.comp.j2:1"),
    ],
)
def test_compile_errors_map_through_includes_and_macros(
    project: Project, file: str, text: str, place: str
) -> None:
    project.write(file, text)
    with pytest.raises(BuildFailedError) as caught:
        project.build()
    assert all(str(error).startswith(place) for error in caught.value.failures)


def test_all_failures_are_reported_and_nothing_is_written(project: Project) -> None:
    writing.write(project.build(), project.root)
    before = outputs(project.root)
    project.write("a.comp.j2", PLAIN.replace("BODY", "y_store(i, nothing);"))
    project.write("b.comp.j2", "{{ nothing }}")
    project.macro({"scale.comp.j2": SCALE_ENTRY, "a.comp.j2": {}, "b.comp.j2": {}})
    with pytest.raises(BuildFailedError) as caught:
        project.build()
    assert [error.template for error in caught.value.failures] == ["a.comp.j2", "b.comp.j2"]
    assert outputs(project.root) == before


@pytest.mark.parametrize(
    ("body", "entry", "message"),
    [
        ("y_store(i, 1.0);", {}, "t.comp.j2:2: tensor 'x' (binding 0) is declared but never used"),
        (
            "y_store(i, x_load(i)); }\nlayout(binding = 5) buffer Z { float z[]; };\nvoid f() {",
            {"optimize": "none"},
            "t.comp.j2:1: the SPIR-V has storage 'z' at set 0, binding 5, which no helper declared",
        ),
        (
            "y_store(i, float(subgroupAdd(x_load(i))));",
            {},
            "'requires' does not list 'subgroup_arithmetic'",
        ),
        ("y_store(i, float(double(x_load(i)) * 3.0LF));", {}, "does not list 'float64'"),
    ],
)
def test_reflection_must_agree_with_the_declarations(
    project: Project, body: str, entry: object, message: str
) -> None:
    head = '{{ extension("GL_KHR_shader_subgroup_arithmetic") }}' if "subgroup" in body else ""
    found = failures(project, {"t.comp.j2": PLAIN.replace("BODY", head + body)}, t=entry)
    assert any(message in error for error in found), found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            PLAIN.replace("BODY", "y_store(i, x_load(i) + K);").replace(
                "void main", "layout(constant_id = 9) const float K = 1.0;\nvoid main"
            ),
            "specialization constant 9 'K', which no helper declared",
        ),
        (
            PLAIN.replace("BODY", "y_store(i, x_load(i) + p.k);").replace(
                "void main", "layout(push_constant) uniform P { float k; } p;\nvoid main"
            ),
            "params: declared [], the SPIR-V has",
        ),
        (
            PLAIN.replace("BODY", "y_store(i, x_load(i));").replace(
                "void main", '{{ params("n:uint") }}\nvoid main'
            ),
            "t.comp.j2:4: params is declared but never used",
        ),
    ],
)
def test_handwritten_interfaces_are_refused(project: Project, text: str, message: str) -> None:
    found = failures(project, {"t.comp.j2": text}, t={})
    assert any(message in error for error in found), found


def test_params_must_be_the_same_in_every_variant(project: Project) -> None:
    text = PLAIN.replace("BODY", "y_store(i, x_load(i) * float(pc.n));").replace(
        "void main", '{{ params("n:uint", "m:uint") if k == 1 else params("n:uint") }}\nvoid main'
    )
    found = failures(project, {"t.comp.j2": text}, t={"axes": {"k": [1, 2]}})
    assert "t.comp.j2:4: 't_2' declares other params than 't_1'" in found[0]


def test_enums_must_be_the_same_everywhere(project: Project) -> None:
    body = PLAIN.replace("BODY", "y_store(i, x_load(i) * MODE_A);")
    files = {
        "a.comp.j2": body.replace("void main", '{{ enum("Mode", "B", "A") }}\nvoid main'),
        "b.comp.j2": body.replace("void main", '{{ enum("Mode", "A", "B") }}\nvoid main'),
    }
    found = failures(project, files, a={}, b={})
    assert "b.comp.j2:1: enum 'Mode' is declared with different members" in found[0]
