"""onnxruntime's quantisation tools: errors become typed, and nothing is printed."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.errors import ConversionError, MissingExtraError
from vkmnn.host.genuine import genuine_onnxruntime
from vkmnn.host.sessions import session_options
from vkmnn.ir import Array
from vkmnn.quantization.calibration import Sample
from vkmnn.quantization.report import Progress
from vkmnn.quantization.scheme import Scheme

_LOG = logging.getLogger(__name__)
_AT_ONCE = 8
"""Samples whose tensors the calibrator keeps at a time."""
_HINT = "pip install 'vkmnn[quantize]'"


def need_tools() -> None:
    """Raise MissingExtraError if onnxruntime is missing or too old."""
    try:
        with _quiet():
            import onnxruntime.quantization
            from onnxruntime.capi._pybind_state import quantize_matmul_8bits
    except ImportError as error:
        raise MissingExtraError(
            "quantisation needs the package 'onnxruntime' 1.22 or newer, which is not installed",
            hint=_HINT,
        ) from error
    assert quantize_matmul_8bits is not None
    assert onnxruntime.quantization is not None


def pack(matrix: Array, bits: int, block: int, symmetric: bool) -> tuple[Array, Array, Array]:
    """Quantise a float32 matrix [K, N] in blocks along K, in MatMulNBits's format.

    Returns:
        Quantised values uint8 [N, blocks, block · bits / 8], scales float32 [N, blocks], and zeros
        uint8 [N, bytes], packed, which are meaningless if `symmetric`.
    """
    from onnxruntime.capi import _pybind_state as kernels

    depth, columns = matrix.shape
    blocks, per_byte = -(-depth // block), 8 // bits
    padded = np.pad(matrix, ((0, blocks * block - depth), (0, 0)))
    codes = np.zeros((columns, blocks, block // per_byte), np.uint8)
    scales = np.zeros((columns, blocks), np.float32)
    zeros = np.zeros((columns, -(-blocks // per_byte)), np.uint8)
    run = kernels.quantize_matmul_4bits if bits == 4 else kernels.quantize_matmul_8bits
    run(codes, padded, scales, zeros, block, columns, depth, symmetric)
    return codes, scales, zeros


def prepare(model: Path, output: Path, external: bool) -> None:
    """Fold constants and batch normalisations before ranges are measured.

    Raises:
        ConversionError: onnxruntime cannot load the model.
    """
    with _quiet(), _explained("prepare the model"):
        from onnxruntime.quantization.shape_inference import quant_pre_process

        quant_pre_process(
            str(model),
            str(output),
            skip_symbolic_shape=True,
            save_as_external_data=external,
            all_tensors_to_one_file=True,
        )


def ranges(model: Path, folder: Path, sample: Sample, external: bool) -> dict[str, float]:
    """Return the largest absolute value of every float tensor, on one sample.

    Raises:
        ConversionError: onnxruntime cannot run the model.
    """
    with _quiet(), _explained("measure the ranges"):
        from onnxruntime.quantization import create_calibrator

        calibrator = create_calibrator(
            str(model),
            augmented_model_path=str(folder / "augmented.onnx"),
            use_external_data_format=external,
        )
        calibrator.collect_data(_Reader([sample], lambda *_: None))
        found = calibrator.compute_data().data
    return {
        name: max(float(np.abs(np.asarray(end)).max(initial=0)) for end in data.range_value)
        for name, data in found.items()
    }


def calibrate(
    model: Path,
    folder: Path,
    scheme: Scheme,
    samples: Sequence[Sample],
    external: bool,
    progress: Progress,
) -> Any:
    """Return the ranges of all tensors on samples, for `quantize_static`.

    Raises:
        ConversionError: onnxruntime cannot run the model.
    """
    readers = [  # created here: they print progress to the output of now
        _Reader(samples[start : start + _AT_ONCE], progress, start, len(samples))
        for start in range(0, len(samples), _AT_ONCE)
    ]
    with _quiet(), _explained("measure the ranges"):
        from onnxruntime import quantization as tools
        from onnxruntime.quantization import create_calibrator

        methods = {
            "minmax": tools.CalibrationMethod.MinMax,
            "entropy": tools.CalibrationMethod.Entropy,
            "percentile": tools.CalibrationMethod.Percentile,
        }
        calibrator = create_calibrator(
            model,
            sorted(quantizable()),
            augmented_model_path=str(folder / "augmented.onnx"),
            calibrate_method=methods[scheme.method],
            use_external_data_format=external,
        )
        for reader in readers:  # the tools keep all tensors of one
            calibrator.collect_data(reader)
        return calibrator.compute_data()


def quantize_static(
    model: Path, output: Path, scheme: Scheme, exclude: Sequence[str], ranges: Any, external: bool
) -> None:
    """Quantise weights and activations, given the ranges of tensors.

    Raises:
        ConversionError: onnxruntime's tools cannot quantise the model.
    """
    with _quiet(), _explained("quantise the model"):
        from onnxruntime import quantization as tools
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
        from onnxruntime.quantization.quant_utils import load_model_with_shape_infer

        weights = {"int8": tools.QuantType.QInt8, "int4": tools.QuantType.QInt4}
        activations = {"int8": tools.QuantType.QInt8, "uint8": tools.QuantType.QUInt8}
        quantizer = QDQQuantizer(
            load_model_with_shape_infer(model),
            scheme.per_channel,
            False,
            weights[scheme.weights],
            activations[scheme.activations or "uint8"],
            ranges,
            [],
            list(exclude),
            sorted(quantizable()),
            {"ActivationSymmetric": scheme.activations == "int8", "WeightSymmetric": True},
        )
        quantizer.quantize_model()
        quantizer.model.save_model_to_file(str(output), external)


@contextmanager
def opened(model: Path | bytes) -> Iterator[Callable[[Sample], dict[str, Any]]]:
    """Yield a model's runs by onnxruntime on the CPU: outputs by name.

    Raises:
        ConversionError: onnxruntime cannot run the model.
    """
    with _quiet(), _explained("open the model"):
        runtime = genuine_onnxruntime()
        source = model if isinstance(model, bytes) else str(model)
        session = runtime.InferenceSession(
            source, session_options(), providers=["CPUExecutionProvider"]
        )
        names = [one.name for one in session.get_outputs()]

    def run(sample: Sample) -> dict[str, Any]:
        with _quiet(), _explained("run the model"):
            return dict(zip(names, session.run(None, sample), strict=True))

    yield run


def quantizable() -> set[str]:
    """Return the operators for which onnxruntime has a quantised form."""
    with _quiet():
        from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry
    return {*QDQRegistry, *QLinearOpsRegistry}


class _Reader:
    """onnxruntime's CalibrationDataReader."""

    def __init__(
        self, samples: Sequence[Sample], progress: Progress, start: int = 0, total: int = 0
    ) -> None:
        self._samples, self._progress, self._next = samples, progress, 0
        self._start, self._total = start, total or len(samples)
        self._stdout = sys.stdout  # the tools' own output is discarded

    def get_next(self) -> Sample | None:
        """Return the next sample, or None after the last."""
        if self._next == len(self._samples):
            return None
        self._next += 1
        self._report("calibrating", self._start + self._next, self._total)
        return self._samples[self._next - 1]

    def _report(self, what: str, done: int, total: int) -> None:
        with redirect_stdout(self._stdout):
            self._progress(what, done, total)

    def __len__(self) -> int:
        return len(self._samples)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress logs, prints and numpy warnings of the tools."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = [_Redirect()]
    try:
        with np.errstate(all="ignore"), redirect_stdout(io.StringIO()):
            yield
    finally:
        root.handlers = handlers
        root.setLevel(level)


class _Redirect(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        if not record.name.startswith("vkmnn"):
            _LOG.debug("onnxruntime: %s", record.getMessage())


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except (MemoryError, KeyboardInterrupt):
        raise
    except Exception as error:
        first = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ConversionError(
            f"onnxruntime's tools cannot {what}: {first}",
            hint="--exclude NAME leaves a node in float; without --activations only weights are "
            "packed",
        ) from error
