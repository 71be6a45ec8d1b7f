from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkmnn
from vkmnn.codegen.compiler import Compiler
from vkmnn.codegen.declare import ELEMENTS, Element
from vkmnn.errors import DeviceNotFoundError, InvalidInputError, ShaderError
from vkmnn.runtime.device import open_device
from vkmnn.runtime.memory import Buffer, MemoryKind
from vkmnn.shaders import kernels

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "run-time-shaders.md"
SWIFTSHADER = Path(
    os.environ.get("VKMNN_SWIFTSHADER_ICD", "/usr/lib/chromium/vk_swiftshader_icd.json")
)

SCALE = """\
{{ local_size(64) }}
{{ tensor_in("x", element, load=load) }}
{{ tensor_out("y", element, load=load) }}
{{ params("count:uint", "alpha:float=1.0", "table:int[2]") }}
{{ spec("SHIFT", "int", 0) }}
{% include "include/common.glsl.j2" %}
void main()
{
    uint i = global_index();
    if (i >= pc.count)
        return;
    y_store(i, {{ compute_type(element) }}(pc.alpha) * x_load(i)
        + {{ compute_type(element) }}(SHIFT + pc.table[1]));
}
"""
COPY = """\
{{ local_size(1) }}
{{ tensor_in("x", "f32") }}
{{ tensor_out("y", "f32") }}
void main()
{
    y_store(gl_GlobalInvocationID.x, x_load(gl_GlobalInvocationID.x));
}
"""


@pytest.fixture(autouse=True)
def _with_compiler(compiler: Compiler) -> None:
    """Skip the test if there is none."""


@pytest.fixture(scope="module")
def device() -> str:
    try:
        open_device()
    except DeviceNotFoundError as error:
        pytest.skip(error.message)
    return "auto"


def scale(element: str, load: str = "buffer", **options: Any) -> vkmnn.ShaderFunction:
    return vkmnn.shader(SCALE, element=element, load=load, **options)


@pytest.mark.parametrize("load", ["buffer", "texel"])
@pytest.mark.parametrize(
    ("element", "dtype"),
    [("f32", "f4"), ("vec2", "f4"), ("vec4", "f4"), ("i32", "i4"), ("ivec4", "i4"), ("u32", "u4")],
)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 13), (0, 3), (1031,), (2, 3, 4, 5)])
@pytest.mark.usefixtures("device")
def test_every_element_and_shape(
    element: str, dtype: str, load: str, shape: tuple[int, ...]
) -> None:
    if (element, load) == ("vec2", "texel"):
        pytest.skip("rg32f is not a format of the Vulkan 1.1 floor")
    f = scale(element, load)
    x = np.random.default_rng(1).integers(-9 if dtype != "u4" else 0, 9, shape).astype(dtype)
    before = x.copy()
    y = f(x, count=x.size, alpha=2.0, SHIFT=3, table=(0, 1))
    assert isinstance(y, np.ndarray)
    assert (y.dtype, y.shape) == (x.dtype, x.shape)
    np.testing.assert_array_equal(y, 2 * x + 4)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize(
    ("element", "dtype", "feature"),
    [
        ("f16", "f2", "storage16"),
        ("f16vec4", "f2", "storage16"),
        ("i8", "i1", "storage8"),
        ("u8vec4", "u1", "storage8"),
        ("i16", "i2", "storage16"),
        ("i64", "i8", "int64"),
        ("f64", "f8", "float64"),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 127])
@pytest.mark.usefixtures("device")
def test_optional_elements(element: str, dtype: str, feature: str, size: int) -> None:
    if feature not in open_device().info.features:
        with pytest.raises(ShaderError, match=feature):
            scale(element, requires=[feature])(np.ones(4, dtype), count=4, table=(0, 0))
        return
    x = np.arange(size).astype(dtype)
    y = scale(element, requires=[feature])(x, count=size, table=(0, 1))
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, x + np.array(1, dtype))


def test_what_is_known_without_a_device() -> None:
    f = vkmnn.shader(COPY, name="copy_all", device="there is no such device")
    assert f.name == "copy_all"
    assert f.glsl.startswith("#version 450")
    assert f.spirv[:4] == b"\x03\x02\x23\x07"
    assert [binding["name"] for binding in f.manifest["bindings"]] == ["x", "y"]
    assert f.last_gpu_ms is None
    assert repr(f).startswith("<shader copy_all(x: float32 | local_size_x=1")
    with pytest.raises(DeviceNotFoundError):
        f(np.ones(3, np.float32))
    with pytest.raises(InvalidInputError, match="numpy backend"):
        vkmnn.shader(COPY, device="cpu")(np.ones(3, np.float32))


@pytest.mark.usefixtures("device")
def test_outputs_and_groups() -> None:
    f = vkmnn.shader(
        """\
{{ local_size(2, 2) }}
{{ tensor_inout("a", "i32") }}
{{ tensor_out("b", "ivec4") }}
void main()
{
    uint i = gl_GlobalInvocationID.x + 4 * gl_GlobalInvocationID.y;
    if (i < 8)
        a_store(i, a_load(i) + 1);
    if (i < 1)
        b_store(i, ivec4(7));
}
"""
    )
    a = np.arange(8, dtype=np.int32)
    b: np.ndarray[Any, Any]
    more, b = f(a, shape={"b": (2, 3)}, groups=(2, 1))
    np.testing.assert_array_equal(a, range(8))
    np.testing.assert_array_equal(more, range(1, 9))
    np.testing.assert_array_equal(b, [[7, 7, 7], [7, 0, 0]])  # what is not written is 0
    with pytest.raises(InvalidInputError, match="2 x 2 x 1 invocations"):
        f(a)
    with pytest.raises(InvalidInputError, match="no tensor_out 'a'"):
        f(a, shape={"a": 3}, groups=1)
    with pytest.raises(InvalidInputError, match="shape must be non-negative"):
        f(a, shape=(-1, 2), groups=1)
    with pytest.raises(InvalidInputError, match="groups must be non-negative"):
        f(a, shape=8, groups=1.5)
    with pytest.raises(InvalidInputError, match="one to three numbers"):
        f(a, shape=8, groups=(1, 1, 1, 1))
    with pytest.raises(InvalidInputError, match="break the limit"):
        f(a, shape=8, groups=2**31)


@pytest.mark.usefixtures("device")
def test_a_shader_without_inputs() -> None:
    f = vkmnn.shader(COPY.replace('{{ tensor_in("x", "f32") }}', "").replace("x_load", "float"))
    np.testing.assert_array_equal(f(shape=5), range(5))
    with pytest.raises(InvalidInputError, match="shape of 'y' is missing"):
        f()


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ((), "0 arrays passed, 1 wanted"),
        ((np.ones(3, "f4"), np.ones(3, "f4")), "2 arrays passed"),
        (([1.0, 2.0],), "must be a numpy array, not list"),
        ((np.ones(3),), r"is float32, got an array of float64\n.*astype\('float32'\)"),
        ((np.ones(3, ">f4"),), "got an array of >f4"),
        ((np.ones((3, 5), "f4").T,), "not C-contiguous"),
        ((np.ones(8, "f4")[::2],), "not C-contiguous"),
    ],
)
def test_wrong_arrays(arrays: tuple[Any, ...], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        scale("f32")(*arrays, count=3, table=(0, 0))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"table": (0, 0)}, "'count' is missing\n.*count=…, uint"),
        ({"count": 1}, "'table' is missing"),
        ({"count": 1, "table": (0, 0), "alfa": 1}, "or specialization constant 'alfa'\n.*alpha=1"),
        ({"count": 1, "table": (0, 0), "y": 1}, "or specialization constant 'y'"),
        ({"count": -1, "table": (0, 0)}, "'count' is uint, not -1"),
        ({"count": 2**32, "table": (0, 0)}, "'count' is uint, not 4294967296"),
        ({"count": 1.5, "table": (0, 0)}, "'count' is uint, not 1.5"),
        ({"count": (1,), "table": (0, 0)}, "'count' is uint"),
        ({"count": 1, "table": (0, 0, 0)}, r"'table' is int\[2\]"),
        ({"count": 1, "table": 0}, r"'table' is int\[2\]"),
        ({"count": 1, "table": (0, 0), "alpha": 1e39}, "'alpha' is float"),
        ({"count": 1, "table": (0, 0), "SHIFT": 0.5}, "SHIFT = 0.5"),
        ({"count": 1, "table": (0, 0), "SHIFT": "many"}, "SHIFT='many'"),
        ({"count": 1, "table": (0, 0), "SHIFT": float("nan")}, "SHIFT=nan"),
        ({"count": 1, "table": (0, 0), "local_size_x": 0}, "local_size_x must be above 0"),
    ],
)
@pytest.mark.usefixtures("device")
def test_wrong_values(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        scale("f32")(np.ones(1, np.float32), **values)


@pytest.mark.usefixtures("device")
def test_numpy_numbers_are_numbers() -> None:
    x = np.ones(3, np.float32)
    y = scale("f32")(x, count=np.int64(3), alpha=np.float64(0.5), table=np.array([0, 1]))
    np.testing.assert_array_equal(y, x / 2 + 1)


def test_names_that_cannot_be_passed() -> None:
    text = SCALE.replace("alpha:", "groups:").replace("pc.alpha", "pc.groups")
    with pytest.raises(ShaderError, match="parameter 'groups' of shader"):
        vkmnn.shader(text, element="f32", load="buffer")


@pytest.mark.parametrize(
    ("change", "line", "message"),
    [
        (("i >= pc.count", "i >="), 10, "syntax error"),
        (("x_load(i)", "x_lod(i)"), 12, "'x_lod' : no matching overloaded function"),
        (("pc.alpha", "{{ alpha }}"), 12, "'alpha' is undefined"),
        (("local_size(64)", "local_size(0)"), 1, "three positive integers"),
        (('"y", element', '"y", "f33"'), 3, "unknown element type 'f33'"),
        (
            ("{{ params", '{{ tensor_in("w", "f32") }}\n{{ params'),
            4,
            "'w' (binding 2) is declared but",
        ),
    ],
)
def test_errors_name_the_line(change: tuple[str, str], line: int, message: str) -> None:
    text = SCALE.replace(*change)
    assert text != SCALE
    with pytest.raises(ShaderError, match=re.escape(message)) as caught:
        vkmnn.shader(text, element="f32", load="buffer")
    assert (caught.value.template, caught.value.line) == ("shader.comp.j2", line)
    assert f"{line} | {text.splitlines()[line - 1]}" in str(caught.value)


def test_a_feature_has_to_be_named() -> None:
    doubles = COPY.replace("x_load(gl", "float(double(x_load(gl").replace("x));", "x))));")
    with pytest.raises(ShaderError, match=r'requires=\["float64"\]'):
        vkmnn.shader(doubles)
    with pytest.raises(ShaderError, match="unknown feature 'storage17'"):
        scale("f16", requires=["storage17"])
    with pytest.raises(ShaderError, match="axis element is"):
        vkmnn.shader(SCALE, element=1.5, load="buffer")  # type: ignore[arg-type]
    with pytest.raises(ShaderError, match="cannot be called"):
        vkmnn.shader(COPY, name="../copy")
    with pytest.raises(ShaderError, match="cannot be called"):
        vkmnn.shader(COPY, name="x" * 5000)


@pytest.mark.usefixtures("device")
def test_template_files(tmp_path: Path) -> None:
    x = np.array([-1, 2, -3], np.float32)
    relu = vkmnn.shader("unary.comp.j2", form="map", element="f32", load="buffer")
    np.testing.assert_array_equal(relu(x, n4=1, KIND=kernels.Unary.RELU.value), [0, 2, 0])
    with pytest.raises(ShaderError, match="has no variant with the axis values"):
        vkmnn.shader("unary.comp.j2", form="map")

    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "twice.glsl.j2").write_text("#define TWICE 2.0\n", "utf-8")
    file = tmp_path / "own.comp.j2"
    text = COPY.replace("void", '{% include "include/twice.glsl.j2" %}\nvoid')
    file.write_text(text.replace("x_load", "TWICE * x_load"), "utf-8")
    for source in (file, str(file)):
        np.testing.assert_array_equal(vkmnn.shader(source)(x), 2 * x)
    (tmp_path / "macro.json").write_text('{"own.comp.j2": {"axes": {"dtype": ["f32"]}}}', "utf-8")
    with pytest.raises(ShaderError, match="variants: own_f32"):
        vkmnn.shader(file)
    np.testing.assert_array_equal(vkmnn.shader(file, dtype="f32")(x), 2 * x)
    with pytest.raises(ShaderError, match="there is no template"):
        vkmnn.shader(tmp_path / "other.comp.j2")
    with pytest.raises(ShaderError, match="is not called"):
        vkmnn.shader(tmp_path / "macro.json")


@pytest.mark.usefixtures("device")
def test_time_on_the_device() -> None:
    f = vkmnn.shader(COPY)
    f(np.ones(1000, np.float32))
    if "timestamps" in open_device().info.features:
        assert f.last_gpu_ms is not None
        assert 0 < f.last_gpu_ms < 1000
        f(np.ones(0, np.float32))
        assert f.last_gpu_ms == 0
    else:
        assert f.last_gpu_ms is None


@pytest.mark.usefixtures("device")
def test_a_thousand_calls_leave_nothing() -> None:
    f = vkmnn.shader(COPY)
    x = np.ones(17, np.float32)
    f(x)
    gc.collect()
    before = open_device().stats()
    for _ in range(1000):
        f(x)
    assert open_device().stats() == before
    with pytest.raises(InvalidInputError):
        f(x, groups=2**31)  # fails when buffers are there already
    gc.collect()
    assert open_device().stats() == before


@pytest.mark.usefixtures("device")
def test_memory_that_the_host_cannot_see(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Buffer.host.fget
    hidden = property(lambda self: None if self.kind is MemoryKind.DEVICE else seen(self))
    monkeypatch.setattr(Buffer, "host", hidden)
    for size in (0, 1, 7, 100_003):
        x = np.arange(size, dtype=np.float32)
        y = scale("vec4")(x, count=-(-size // 4), table=(0, 1))
        np.testing.assert_array_equal(y, x + 1)


@pytest.mark.usefixtures("device")
def test_threads_share_a_function() -> None:
    f = scale("vec4")
    results: dict[int, bool] = {}

    def work(number: int) -> None:
        x = np.full(101, number, np.float32)
        results[number] = all(
            (f(x, count=26, SHIFT=number, table=(0, 0)) == 2 * number).all() for _ in range(20)
        )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == dict.fromkeys(range(4), True)


@pytest.mark.usefixtures("device")
def test_a_closed_device_is_opened_again() -> None:
    f = vkmnn.shader(COPY)
    x = np.arange(5, dtype=np.float32)
    f(x)
    open_device().close()
    np.testing.assert_array_equal(f(x), x)


@pytest.mark.validation
def test_under_validation() -> None:
    from vkmnn.errors import ValidationLayerError

    try:
        open_device(validation=True)
    except (ValidationLayerError, DeviceNotFoundError) as error:
        pytest.skip(f"validation: {error.message}")
    for load in ("buffer", "texel"):
        f = scale("vec4", load, validation=True)
        for size in (0, 1, 5, 1000):
            x = np.ones(size, np.float32)
            np.testing.assert_array_equal(f(x, count=-(-size // 4), table=(1, 2)), x + 2)


@pytest.mark.usefixtures("device")
def test_compiled_once() -> None:
    first = scale("f32")
    cache = Path(os.environ["VKMNN_CACHE_DIR"]) / "codegen"
    kept = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert kept
    second = scale("f32")
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == kept
    assert (first.spirv, first.glsl, first.manifest) == (second.spirv, second.glsl, second.manifest)


NO_JINJA = "sys.modules['jinja2'] = None"
NO_COMPILER = (
    "from vkmnn.codegen import compilers; "
    "compilers.bundled_glslang = compilers._bundled_slang = lambda: None"
)


@pytest.mark.parametrize("missing", [NO_JINJA, NO_COMPILER], ids=["jinja2", "compiler"])
def test_without_the_extra(missing: str) -> None:
    """Only the call fails, and tells which package to install."""
    code = f"""
import sys
{missing}
import vkmnn, vkmnn.codegen
try:
    vkmnn.shader({COPY!r})
except vkmnn.ShaderError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
        env={**os.environ, "PATH": ""},
        check=True,
    )
    assert "pip install 'vkmnn[codegen]'" in done.stdout


@pytest.fixture
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_runs(in_folder: Path, device: str) -> None:
    """Its files are written and its Python is executed, from top to bottom."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(
        r"(?:^`([\w./]+)`:\n\n)?^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL
    )
    assert [language for _, language, _ in blocks].count("python") >= 4
    names: dict[str, Any] = {}
    for file, language, body in blocks:
        if language == "python":
            exec(compile(body, str(PAGE), "exec"), names)  # noqa: S102 - our own page
        else:
            assert file, f"nobody knows what this block is:\n{body}"
            (in_folder / file).parent.mkdir(parents=True, exist_ok=True)
            (in_folder / file).write_text(body, encoding="utf-8")
    check: Callable[..., Any] = names["axpy"]
    assert check(np.ones(3, np.float32), np.ones(3, np.float32)).tolist() == [2, 2, 2]
    from vkmnn.runtime.device import open_device

    opened = open_device(device)
    assert opened.pipeline(names["shaders"]["double_f32"]).params_size == 4


@pytest.mark.soak
@pytest.mark.swiftshader
def test_the_same_on_swiftshader() -> None:
    if not SWIFTSHADER.is_file():
        pytest.skip("SwiftShader is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-m", "not swiftshader", str(Path(__file__).resolve())],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=ROOT,
        env={
            **os.environ,
            **dict.fromkeys(("VK_DRIVER_FILES", "VK_ICD_FILENAMES"), str(SWIFTSHADER)),
        },
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


BF16 = """\
float brain_widened(uint bits) { return uintBitsToFloat(bits << 16); }
vec4 brain_widened(uvec4 bits) { return uintBitsToFloat(bits << 16); }
uint brain_rounded(float x)
{
    uint bits = floatBitsToUint(x);
    bool number = (bits & 0x7fffffffu) <= 0x7f800000u;
    return number ? (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16 : bits >> 16 | 0x40u;
}
uvec4 brain_rounded(vec4 x)
{
    return uvec4(brain_rounded(x.x), brain_rounded(x.y), brain_rounded(x.z), brain_rounded(x.w));
}
"""


@pytest.mark.parametrize("load", ["buffer", "texel"])
@pytest.mark.parametrize("lanes", [1, 4])
def test_elements_that_functions_widen_and_round(
    device: str, lanes: int, load: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """bfloat16 as integers: devices need no type for it."""
    texel = {1: "r16ui", 4: "rgba16ui"}[lanes]
    missing = {"storage16", "texel_r16ui"} - open_device(device).info.features
    if missing:
        pytest.skip(f"the device lacks {', '.join(sorted(missing))}")
    words, computed, bits = ("uint16_t", "float", "uint")
    if lanes == 4:
        words, computed, bits = ("u16vec4", "vec4", "uvec4")
    monkeypatch.setitem(
        ELEMENTS,
        "brain",
        Element(
            *(words, computed, 2 * lanes, texel),
            *("GL_EXT_shader_16bit_storage", ("storage16",)),
            decode=f"brain_widened({bits}({{}}))",
            encode="brain_rounded({})",
            functions=BF16,
            components=lanes,
        ),
    )
    x = np.array([1.0, -2.5, 3.1415927, 1e38, np.inf, np.nan, 1e-38, 257.0], np.float32)
    given = x.view(np.uint32) >> 16
    got = scale("brain", load)(given.astype(np.uint16), count=8 // lanes, table=[0, 0], alpha=1.5)
    widened = (given << 16).astype(np.uint32).view(np.float32)
    want = widened * np.float32(1.5)
    back = (got.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_allclose(back, want, rtol=2.0**-8)
    even = (want.view(np.uint32) + 0x7FFF + (want.view(np.uint32) >> 16 & 1)) >> 16
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[finite], even[finite])
