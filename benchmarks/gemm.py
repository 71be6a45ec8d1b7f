"""Matrix products alone: FLOP/s on the device, without copies, compared with cuBLAS."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
from rich.table import Table

import vkmnn
from vkmnn.cli.console import table
from vkmnn.ir import Array

# M, N and K: squares, and the products of BERT-base and ViT-B/16 at batch 1.
SIZES = (
    *((n, n, n) for n in (256, 512, 1024, 2048, 4096)),
    *((128, 768, 768), (128, 3072, 768), (128, 768, 3072), (197, 3072, 768), (1, 4096, 4096)),
)
STORED = {"high": "f32", "normal": "f16"}


@dataclass(frozen=True, slots=True)
class GemmResult:
    """A product of M×K by a constant K×N; FLOP/s of vkmnn and cuBLAS, None where not measured.

    `dtype` is how matrices are stored; sums are float32 in any case. `error` is the largest
    difference to numpy, as a part of the range.
    """

    m: int
    n: int
    k: int
    dtype: str
    kernel: str
    flops: float
    cublas: float | None
    error: float


def measure(
    size: tuple[int, int, int], precision: str, device: str, runs: int
) -> GemmResult | None:
    """Measure a product; None if the device does not support the precision."""
    m, n, k = size
    rng = np.random.default_rng(0)
    x = rng.standard_normal((m, k), dtype=np.float32)
    w = rng.standard_normal((k, n), dtype=np.float32) / np.float32(k**0.5)
    with vkmnn.InferenceSession(_model(m, w), device, precision=precision) as session:
        if session.precision != precision:
            return None
        (y,) = session.run(None, {"x": x})
        profile = session.profile({"x": x}, runs)
    op = max(profile.ops(), key=lambda op: op.flops)
    spent = op.microseconds / 1e6
    rows = slice(0, min(m, 64))
    want = x[rows] @ w
    error = float(np.abs(y[rows] - want).max() / np.ptp(want))
    dtype = STORED[precision]
    return GemmResult(m, n, k, dtype, op.kernel, op.flops / spent, _cublas(size, dtype), error)


def _model(m: int, w: Array) -> Any:
    from onnx import TensorProto, helper, numpy_helper

    k, n = w.shape
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [m, k])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [m, n])],
        [numpy_helper.from_array(w, "w")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _cublas(size: tuple[int, int, int], dtype: str, repeats: int = 20) -> float | None:
    """Return cuBLAS's FLOP/s by PyTorch (no TF32); None without a CUDA device."""
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    torch.backends.cuda.matmul.allow_tf32 = False
    m, n, k = size
    kind = torch.float16 if dtype == "f16" else torch.float32
    x, w = (torch.randn(shape, device="cuda", dtype=kind) for shape in ((m, k), (k, n)))
    spent = []
    for _ in range(repeats):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        torch.matmul(x, w)
        end.record()
        torch.cuda.synchronize()
        spent.append(begin.elapsed_time(end) / 1e3)
    return 2 * m * n * k / median(spent)


def gemm_table(rows: Sequence[GemmResult]) -> Table:
    """Return the results as a table."""
    sizes, numbers = ("M", "N", "K"), ("GFLOP/s", "cuBLAS", "of cuBLAS", "difference")
    made = table(*sizes, "stored as", "kernel", *numbers, right=[*sizes, *numbers])
    for row in rows:
        part = None if row.cublas is None else row.flops / row.cublas
        made.add_row(
            *(str(value) for value in (row.m, row.n, row.k, row.dtype, row.kernel)),
            f"{row.flops / 1e9:,.1f}",
            "–" if row.cublas is None else f"{row.cublas / 1e9:,.1f}",
            "–" if part is None else f"{100 * part:.0f} %",
            f"{row.error:.0e}",
        )
    return made
