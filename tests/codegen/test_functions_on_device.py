"""The elementary functions and activations of glsl/include, measured on a device in ULP."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.codegen.conftest import Project
from vkmnn.codegen.compiler import Compiler
from vkmnn.runtime import (
    BufferRange,
    Device,
    MemoryKind,
    Shader,
    enumerate_devices,
    linear_groups,
    open_device,
)
from vkmnn.shaders import kernels, shader_from_entry
from vkmnn.shaders.kernels import Activation

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
ALPHA = float(np.float32(0.3))
BETA = float(np.float32(1.7))
SMALLEST_NORMAL = 2.0**-126
erf = np.vectorize(math.erf)
erfc = np.vectorize(math.erfc)


@pytest.fixture(scope="module")
def device() -> Device:
    if not enumerate_devices():
        pytest.skip("no Vulkan device")
    return open_device("auto")


def run(
    device: Device,
    shader: Shader,
    params: bytes,
    x: NDArray[Any],
    result: type[np.generic],
    spec: Mapping[str, int] | None = None,
) -> NDArray[Any]:
    """Run a kernel with bindings (x, y) on flat groups of four elements."""
    x = np.concatenate([x, np.zeros(-len(x) % 4, x.dtype)])
    count = len(x) // 4
    with (
        device.allocate(x.nbytes, MemoryKind.DEVICE) as source,
        device.allocate(x.nbytes, MemoryKind.DEVICE) as target,
    ):
        source.write(0, x)
        recorder = device.recorder()
        recorder.dispatch(
            device.pipeline(shader, spec or {}),
            [BufferRange(source, 0, x.nbytes), BufferRange(target, 0, x.nbytes)],
            params,
            linear_groups(count, shader.local_size[0], device.info.limits),
        )
        with recorder.finish() as commands:
            commands.run()
        return target.read(0, x.nbytes).view(result).copy()


def inputs() -> F32:
    rng = np.random.default_rng(7)
    magnitude = np.exp2(rng.uniform(-40, 127, 20011))
    return np.concatenate(
        [
            magnitude,
            -magnitude,
            rng.normal(size=20011),
            rng.uniform(-1, 1, 20011),
            rng.uniform(-110, 110, 20011),
            1 + rng.normal(size=5003) * 1e-3,
            np.arange(-5000, 5000) * (np.pi / 2),
            [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.5, 3.5, 1.5, -2.5, 3.4e38, -3.4e38],
            [88.72, 88.73, 89.4, -87.3, 9.0, -9.0, 10.1, np.inf, -np.inf, np.nan],
        ]
    ).astype(np.float32)


X = inputs()


def sigmoid(x: F64) -> F64:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1) / (1 + e)


def softplus(x: F64) -> F64:
    return np.logaddexp(0, x)


# op -> (reference in double precision, bound in ULP of the result)
FUNCTIONS: dict[str, tuple[Callable[[F64], F64], float]] = {
    "ABS": (np.abs, 0),
    "NEG": (np.negative, 0),
    "RECIPROCAL": (np.reciprocal, 3),
    "FLOOR": (np.floor, 0),
    "CEIL": (np.ceil, 0),
    "ROUND": (np.round, 0),
    "SQRT": (np.sqrt, 3),
    "RSQRT": (lambda x: 1 / np.sqrt(x), 3),
    "SQUARE": (np.square, 1),
    "EXP": (np.exp, 2),
    "LOG": (np.log, 2),
    "ERF": (erf, 3),
    "SIN": (np.sin, 4),
    "COS": (np.cos, 4),
    "TAN": (np.tan, 7),
    "ASIN": (np.arcsin, 2),
    "ACOS": (np.arccos, 2),
    "ATAN": (np.arctan, 4),
    "SINH": (np.sinh, 4),
    "COSH": (np.cosh, 3),
    "ASINH": (np.arcsinh, 4),
    "ACOSH": (np.arccosh, 4),
    "ATANH": (np.arctanh, 4),
    "SIGN": (np.sign, 0),
    "RELU": (lambda x: np.maximum(x, 0), 0),
    "CLIP": (lambda x: np.clip(x, ALPHA, BETA), 0),
    "LEAKY_RELU": (lambda x: np.where(x < 0, ALPHA * x, x), 1),
    "SIGMOID": (sigmoid, 5),
    "TANH": (np.tanh, 4),
    "ELU": (lambda x: np.where(x < 0, ALPHA * np.expm1(x), x), 4),
    "SELU": (lambda x: BETA * np.where(x < 0, ALPHA * np.expm1(x), x), 4),
    "CELU": (lambda x: np.where(x < 0, ALPHA * np.expm1(x / ALPHA), x), 5),
    "SOFTPLUS": (softplus, 4),
    "SOFTSIGN": (lambda x: x / (1 + np.abs(x)), 4),
    "THRESHOLDED_RELU": (lambda x: np.where(x > ALPHA, x, 0), 0),
}
# op -> (reference, absolute bound relative to max(1, |result|)): products that cancel by nature
SMOOTH: dict[str, tuple[Callable[[F64], F64], float]] = {
    "HARD_SIGMOID": (lambda x: np.clip(ALPHA * x + BETA, 0, 1), 2e-7),
    "HARD_SWISH": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 4e-7),
    "GELU": (lambda x: 0.5 * x * erfc(-x / math.sqrt(2)), 4e-7),
    "GELU_TANH": (
        lambda x: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
        4e-7,
    ),
    "SILU": (lambda x: x * sigmoid(x), 4e-7),
    "MISH": (lambda x: x * np.tanh(softplus(x)), 4e-7),
}


def unary(device: Device, op: Any, x: NDArray[Any], load: Any = "texel", **values: Any) -> Any:
    dtype: Any = "i32" if x.dtype == np.int32 else "f32"
    form: Any = "test" if op in ("ISNAN", "ISINF") else "map"
    shader = kernels.unary(form=form, element=dtype, load=load)
    params = kernels.UnaryParams(n4=-(-len(x) // 4), **values)
    kind = np.int32 if dtype == "i32" or op in ("ISNAN", "ISINF") else np.float32
    return run(device, shader, params.pack(), x, kind, {"KIND": kernels.Unary[op].value})[: len(x)]


def compare(got: F32, expected: F64) -> tuple[F64, F64]:
    """Return (error, spacing) where both are finite and normal; checks the rest exactly."""
    narrow = expected.astype(np.float32)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(narrow))
    finite = np.isfinite(narrow) & np.isfinite(got)
    odd = ~finite & ~np.isnan(narrow)
    # At the edge of the range a result may round to infinity or to the largest number.
    edge = odd & (np.abs(expected) > 3.4028e38) & (np.abs(expected) < 3.4029e38)
    np.testing.assert_array_equal(got[odd & ~edge], narrow[odd & ~edge])
    normal = finite & (np.abs(narrow) >= SMALLEST_NORMAL)
    small = finite & ~normal  # a device may flush these to zero
    assert np.all(np.abs(got[small] - expected[small]) <= SMALLEST_NORMAL)
    error = np.abs(got[normal].astype(np.float64) - expected[normal])
    return error, np.spacing(np.abs(narrow[normal])).astype(np.float64)


@pytest.mark.parametrize("op", sorted(FUNCTIONS))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_ulp(device: Device, op: str) -> None:
    function, bound = FUNCTIONS[op]
    got = unary(device, op, X, alpha=ALPHA, beta=BETA)
    error, spacing = compare(got, function(X.astype(np.float64)))
    assert np.max(error / spacing) <= bound


@pytest.mark.parametrize("op", sorted(SMOOTH))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_smooth_functions(device: Device, op: str) -> None:
    function, bound = SMOOTH[op]
    x = X[np.isfinite(X) & (np.abs(X) < 1e12)]  # beyond, the double reference overflows in x**3
    got = unary(device, op, x, alpha=ALPHA, beta=BETA)
    expected = function(x.astype(np.float64))
    assert np.all(np.abs(got - expected) <= bound * np.maximum(1, np.abs(expected)))


def test_rounding_is_half_to_even(device: Device) -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999997, 8388609.0], np.float32)
    np.testing.assert_array_equal(unary(device, "ROUND", x), np.round(x))


def test_tests_for_numbers(device: Device) -> None:
    x = np.array([np.nan, -np.nan, np.inf, -np.inf, 3.4e38, 0, -1], np.float32)
    np.testing.assert_array_equal(unary(device, "ISNAN", x), np.isnan(x))
    both = unary(device, "ISINF", x, alpha=1.0, beta=1.0)
    np.testing.assert_array_equal(both, np.isinf(x))
    np.testing.assert_array_equal(unary(device, "ISINF", x, alpha=1.0), np.isneginf(x))
    np.testing.assert_array_equal(unary(device, "ISINF", x, beta=1.0), np.isposinf(x))


@pytest.mark.parametrize("load", ["buffer", "texel"])
@pytest.mark.parametrize("size", [1, 3, 4, 257, 4099])
def test_integers(device: Device, load: str, size: int) -> None:
    edges = np.array([0, 1, -1, 2**31 - 1, -(2**31), 2**24 + 1], np.int32)
    x = np.random.default_rng(size).integers(-(2**31), 2**31, size).astype(np.int32)
    x[: len(edges)] = edges[:size]
    with np.errstate(over="ignore"):
        expected = {
            "ABS": np.abs(x),
            "NEG": np.negative(x),
            "SIGN": np.sign(x),
            "NOT": (x == 0).astype(np.int32),
            "RELU": np.maximum(x, 0),
            "SQUARE": x * x,
            "CLIP": np.clip(x, -16777217, 16777217),
        }
    for op, values in expected.items():
        got = unary(device, op, x, load, lo=-16777217, hi=16777217)
        np.testing.assert_array_equal(got, values, err_msg=op)


@pytest.mark.parametrize("size", [1, 5, 4096, 4099])
def test_loads_do_not_matter(device: Device, size: int) -> None:
    x = np.random.default_rng(size).standard_normal(size).astype(np.float32)
    for op in ("GELU", "RELU"):
        texel = unary(device, op, x, "texel")
        np.testing.assert_array_equal(unary(device, op, x, "buffer"), texel)


# --- fused activations ---------------------------------------------------------------------------

FUSED = """\
{{ local_size(64) }}
{{ tensor_in("x", "vec4") }}
{{ tensor_out("y", "vec4") }}
{{ params("n4:uint", "act_alpha:float", "act_beta:float") }}
{% include "include/common.glsl.j2" %}
{% include "include/activation.glsl.j2" %}
void main()
{
    uint i = global_index();
    if (i >= pc.n4)
        return;
    y_store(i, activate(x_load(i)));
}
"""
ALL = {**FUNCTIONS, **SMOOTH, "NONE": (np.array, 0.0)}
ALL["QUICK_GELU"] = (lambda x: x / (1 + np.exp(-ALPHA * x)), 0.0)


@pytest.fixture(scope="module")
def fused(compiler: Compiler, tmp_path_factory: pytest.TempPathFactory) -> Shader:
    project = Project(Path(tmp_path_factory.mktemp("fused")) / "shaders", compiler)
    project.write("fused.comp.j2", FUSED)
    project.macro({"fused.comp.j2": {}})
    built = project.build()
    return shader_from_entry("fused", built.variants["fused"], lambda: built.spirv["fused"])


OF_NUMBERS = [one for one in Activation if one is not Activation.REQUANTIZE]
"""The functions of a number; products of codes end with what needs more than that."""


@pytest.mark.parametrize("activation", OF_NUMBERS, ids=lambda a: a.name)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_fused_activation(device: Device, fused: Shader, activation: Activation) -> None:
    x = X[~np.isinf(X) & ~(np.abs(X) > 1e12)]
    params = np.array([-(-len(x) // 4)], np.uint32).tobytes()
    params += np.array([ALPHA, BETA], np.float32).tobytes()
    got = run(device, fused, params, x, np.float32, {"ACTIVATION": int(activation)})[: len(x)]
    expected = ALL[activation.name][0](x.astype(np.float64))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    numbers = ~np.isnan(x)
    error = np.abs(got - expected)[numbers]
    assert np.all(error <= 1e-6 * np.maximum(1, np.abs(expected[numbers])))


@pytest.mark.parametrize("activation", OF_NUMBERS, ids=lambda a: a.name)
def test_large_values_stay_finite(device: Device, fused: Shader, activation: Activation) -> None:
    x = np.array([3e38, -3e38, 1e20, -1e20, 89, -89, 1e-30], np.float32)
    params = np.array([2], np.uint32).tobytes() + np.array([0.5, 0.5], np.float32).tobytes()
    got = run(device, fused, params, x, np.float32, {"ACTIVATION": int(activation)})[:7]
    assert np.all(np.isfinite(got)), got


def test_activation_names_are_those_of_the_ir() -> None:
    ir = pytest.importorskip("vkmnn.ir.ops")
    assert tuple(one.name for one in OF_NUMBERS) == ir.ACTIVATION_KINDS
