"""Mixtures of experts: what is computed, and that nothing but the chosen experts is read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkmnn
from vkmnn.ir.codes import decode
from vkmnn.runtime.device import open_profile
from vkmnn.vulkan.encoder import VulkanEncoder
from vkmnn.vulkan.executions.experts import ExpertsKernel, ExpertsProblem, candidates_of
from vkmnn.vulkan.gemm.codes import CodeForm

Arrays = dict[str, npt.NDArray[Any]]

EXPERTS, CHOSEN, WIDTH, INNER = 6, 2, 32, 48
UNUSED = (1, 4)
"""Experts that no router chooses; their weights are not numbers."""


def _weights(kind: str) -> tuple[Arrays, Arrays]:
    """Return the inputs of a node, and the numbers that they stand for."""
    rng = np.random.default_rng(3)
    given: Arrays = {}
    plain: Arrays = {}
    for name, (columns, depth) in (("1", (INNER, WIDTH)), ("2", (WIDTH, INNER)),
                                   ("3", (INNER, WIDTH))):  # fmt: skip
        if kind.startswith("float"):
            values = rng.standard_normal((EXPERTS, columns, depth)).astype(kind) / 4
            given[f"w{name}"], plain[name] = values, values.astype(np.float64)
            poisoned = f"w{name}"
        else:
            bits, block = int(kind), 16
            codes = rng.integers(
                0, 256, (EXPERTS, columns, depth // block, block * bits // 8), dtype=np.uint8
            )
            shape = (EXPERTS, columns, depth // block)
            scales = rng.uniform(0.01, 0.05, shape).astype(np.float32) * 16 / 2**bits
            plain[name] = np.stack([
                decode(codes[n], scales[n], None, bits, depth) for n in range(EXPERTS)
            ]).astype(np.float64)  # fmt: skip
            given[f"w{name}"] = codes.reshape(EXPERTS, columns, -1)
            given[f"s{name}"], poisoned = scales, f"s{name}"
        given[poisoned][list(UNUSED)] = np.nan
    return given, plain


def _model(kind: str, given: Arrays) -> onnx.ModelProto:
    coded = not kind.startswith("float")
    names = [name for n in "123" for name in ((f"w{n}", f"s{n}", "") if coded else (f"w{n}", ""))]
    how = {"expert_weight_bits": int(kind), "block_size": 16} if coded else {}
    node = helper.make_node(
        "QMoE" if coded else "MoE", ["x", "router", *names], ["y"], domain="com.microsoft",
        k=CHOSEN, activation_type="silu", normalize_routing_weights=1, **how,
    )  # fmt: skip
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [node], "mixture",
        [info("x", TensorProto.FLOAT, ["b", "s", WIDTH]),
         info("router", TensorProto.FLOAT, ["b", "s", EXPERTS])],
        [info("y", TensorProto.FLOAT, ["b", "s", WIDTH])],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _expected(x: npt.NDArray[Any], router: npt.NDArray[Any], plain: Arrays) -> npt.NDArray[Any]:
    made = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:2]):
        best = np.argsort(-router[place])[:CHOSEN]
        shares = np.exp(router[place][best] - router[place][best].max())
        for expert, share in zip(best, shares / shares.sum(), strict=True):
            gate = plain["1"][expert] @ x[place]
            hidden = gate / (1 + np.exp(-gate)) * (plain["3"][expert] @ x[place])
            made[place] += share * (plain["2"][expert] @ hidden)
    return made


@pytest.mark.parametrize("kind", ["float32", "float16", "4", "8"])
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_only_the_weights_of_chosen_experts_are_read(kind: str, precision: str) -> None:
    """Rows of few experts each, and many rows of each expert; both twice."""
    given, plain = _weights(kind)
    session = vkmnn.InferenceSession(_model(kind, given), precision=precision)
    rng = np.random.default_rng(7)
    for shape in ((1, 1), (2, 3), (1, 29), (1, 1)):
        x = rng.standard_normal((*shape, WIDTH)).astype(np.float32)
        router = rng.standard_normal((*shape, EXPERTS)).astype(np.float32)
        router[..., list(UNUSED)] -= 100
        expected = _expected(x, router, plain)
        found = session.run(None, {"x": x, "router": router})[0]
        error = np.abs(found - expected).max() / np.ptp(expected)
        assert error < (1e-5 if precision == "fp32" else 5e-3)


@pytest.mark.parametrize("profile", ["mali-g78", "mali-g610", "lavapipe-22.3"])
def test_every_device_has_a_kernel(profile: str) -> None:
    """Workgroups of 128 invocations are enough; software devices keep their subgroups."""
    info = open_profile(profile).info
    encoder = cast(VulkanEncoder, SimpleNamespace(info=info, loads=("texel", "buffer")))
    form = CodeForm(4, 32, 64, 64, experts=8)
    first = candidates_of(ExpertsProblem(2, form), encoder)[0]
    assert first == ExpertsKernel(1, 8 if profile.startswith("lavapipe") else 64)
