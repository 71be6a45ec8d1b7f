"""`vkmnn.quantize`: quantise a float model and measure the cost in accuracy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.arguments import target_path
from vkmnn.converter.onnx.stored import stored_by_type
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.quantization import model as models
from vkmnn.quantization import tools
from vkmnn.quantization.accuracy import compare as compare_outputs
from vkmnn.quantization.advice import advice_for, refuse_quantized
from vkmnn.quantization.calibration import Calibration, Sample, Sizes, random_sample, read_samples
from vkmnn.quantization.packing import pack_weights
from vkmnn.quantization.remaining import split_nodes
from vkmnn.quantization.report import FloatNode, OutputAccuracy, Progress, Quantized, Size
from vkmnn.quantization.scheme import ActivationType, Method, Scheme, WeightType
from vkmnn.sources.locate import model_file

if TYPE_CHECKING:
    import onnx

    Model = str | Path | bytes | onnx.ModelProto
    Nodes = tuple[list[str], list[FloatNode]]

_COMPARED = 16
_MADE_UP = 4
_WIDE = 1e4  # from here on, steps of 8 bits are too large


def quantize(
    model: Model,
    path: str | Path,
    *,
    weights: WeightType = "int8",
    block: int = 32,
    symmetric: bool = True,
    activations: ActivationType | None = None,
    calibration: Calibration | None = None,
    method: Method = "minmax",
    per_channel: bool = True,
    exclude: Sequence[str] = (),
    external_data: bool | None = None,
    compare: bool = True,
    device: str | int = "auto",
    sizes: Sizes | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Quantized:
    """Quantise the weights of a model, and with `activations` also its activations, as ONNX.

    Without `activations`, constant matrices are quantised in blocks (MatMulNBits,
    GatherBlockQuantized), and with "int8" the weights of convolutions become int8 with a scale per
    channel. With `activations`, onnxruntime's static quantisation inserts QuantizeLinear and
    DequantizeLinear where it can.

    Args:
        model: a path, serialised bytes or an onnx.ModelProto, in float32 or float16.
        path: the .onnx file to write; it appears when it is complete.
        weights: "int4" or "int8".
        block: number of weights along K that share a scale: 16, 32, 64, 128 or 256.
        symmetric: no zero points, for weights quantised in blocks.
        activations: "int8" (symmetric) or "uint8"; needs `calibration`.
        calibration: a .npz file or arrays by the names of inputs, all samples along the first axis;
            the outputs are also compared on it.
        method: how ranges of activations follow from the samples.
        per_channel: a scale per output channel, for models with `activations`.
        exclude: names of nodes that stay in float.
        external_data: write the weights to PATH.data; None: if the model has external data, or is
            large.
        compare: run both models on the samples, or on random inputs without samples.
        device: the device that runs them.
        sizes: sizes of named dimensions, and shapes of inputs by name, for random inputs; other
            sizes are 1.
        seed: seed of random inputs.
        progress: called with the current step, the amount done, and the total.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        ModelError: the model is missing, damaged or not a model.
        ConversionError: onnxruntime's tools cannot quantise the model.
        InvalidInputError: an argument or the calibration data is not valid, with the input named;
            the model is quantised already; or the file cannot be written.
    """
    if isinstance(exclude, str):
        raise InvalidInputError(
            f"exclude is a list of names, not {exclude!r}", hint=f"write ['{exclude}']"
        )
    scheme = Scheme(weights, block, symmetric, activations, method, per_channel, tuple(exclude))
    scheme.check()
    target = target_path(path, ".onnx")
    if activations and calibration is None:
        raise _no_calibration(activations)
    tools.need_tools()
    report = progress or _say_nothing
    model = model_file(model)
    proto = models.load(model)
    refuse_quantized(proto)
    _check_excluded(proto, scheme.exclude)
    samples, made_up = _samples(proto, calibration, sizes or {}, seed, compare)
    before = _sizes(proto)
    if external_data is None:
        external_data = models.has_external_data(model)
    if external_data or models.is_large(proto):
        _keep_weights(model, target)
    with _beside(target) as folder:
        if activations:
            proto, nodes = _static(proto, scheme, samples, folder, report)
        else:
            nodes = pack_weights(proto, scheme, tools.pack, report)
        external_data = external_data or models.is_large(proto)
        files = models.save(proto, folder / target.name, external_data)
        chosen = _chosen(samples) if compare else []
        accuracy: tuple[OutputAccuracy, ...] = ()
        if chosen:
            accuracy = compare_outputs(model, folder / target.name, chosen, device, report)
        for file in files:
            file.replace(target.with_name(file.name))
    written = tuple(target.with_name(file.name) for file in reversed(files))
    sizes_after = _sizes(proto)
    advice = "" if activations else advice_for(proto, weights, sizes_after)
    made = (tuple(nodes[0]), tuple(nodes[1]), accuracy, len(chosen), made_up, advice)
    return Quantized(target, written, before, sizes_after, *made)


def _no_calibration(activations: str) -> InvalidInputError:
    return InvalidInputError(
        f"activations in {activations} need calibration data",
        hint="--calibrate data.npz, or calibration={name: array}: about 100 inputs from real use",
    )


def _chosen(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return the samples on which outputs are compared, spread over all, at most `_COMPARED`."""
    return samples[:: -(-len(samples) // _COMPARED)] if samples else []


def _static(
    proto: onnx.ModelProto,
    scheme: Scheme,
    samples: Sequence[Sample],
    folder: Path,
    report: Progress,
) -> tuple[onnx.ModelProto, Nodes]:
    """Quantise weights and activations; the tools pass models from file to file."""
    external = models.is_large(proto)
    plain, ready, done = (folder / f"{name}.onnx" for name in ("float", "ready", "quantized"))
    outputs = {
        name for node in proto.graph.node if node.name in scheme.exclude for name in node.output
    }
    report("preparing", 0, 1)
    models.save(proto, plain, external)
    tools.prepare(plain, ready, external)
    prepared = models.load(ready)
    models.save(prepared, ready, external)
    # Folded values have another name, but the same output.
    left_out = {
        node.name: "excluded"
        for node in prepared.graph.node
        if node.name in scheme.exclude or outputs & {*node.output}
    }
    left_out = _around_masks(prepared, tools.ranges(ready, folder, samples[0], external)) | left_out
    tools.quantize_static(ready, done, scheme, list(left_out), samples, external, report)
    quantized = models.load(done)
    return quantized, split_nodes(quantized, left_out, tools.quantizable())


def _around_masks(proto: onnx.ModelProto, ranges: Mapping[str, float]) -> dict[str, str]:
    """Return the nodes around values so large that 8 bits could represent nothing else."""
    wide = {name: largest for name, largest in ranges.items() if not largest < _WIDE}
    found = {}
    for node in proto.graph.node:
        largest = [wide[name] for name in (*node.input, *node.output) if name in wide]
        if largest:
            found[node.name] = (
                f"values of up to {max(largest):.1g}, as in masks, would leave no steps for others"
            )
    return found


def _samples(
    proto: onnx.ModelProto,
    calibration: Calibration | None,
    sizes: Sizes,
    seed: int,
    compare: bool,
) -> tuple[list[Sample], bool]:
    """Return calibration data and comparison data, and whether they are random."""
    if calibration is not None:
        return read_samples(calibration, models.inputs_of(proto)), False
    if not compare:
        return [], False
    inputs = models.inputs_of(proto)
    return [random_sample(inputs, sizes, seed + index) for index in range(_MADE_UP)], True


def _check_excluded(proto: onnx.ModelProto, names: Sequence[str]) -> None:
    known = {node.name for graph in models.graphs_of(proto.graph) for node in graph.node}
    for name in names:
        if name not in known:
            raise InvalidInputError(
                f"the model has no node '{name}' to exclude",
                hint=nearest(name, sorted(known), "nodes", most=3),
            )


def _keep_weights(model: Model, target: Path) -> None:
    """Refuse to overwrite the weights of the model that is quantised, or another one."""
    beside = models.data_path(target)
    replaced = isinstance(model, str | Path) and target.resolve() == Path(model).resolve()
    if not replaced and beside.resolve() in models.external_files(model):
        raise InvalidInputError(
            f"'{beside}' holds weights of the float model, and would be overwritten",
            hint="give another path to write",
        )


def _sizes(proto: onnx.ModelProto) -> dict[str, Size]:
    return {name: Size(*stored) for name, stored in stored_by_type(proto).items()}


def _say_nothing(what: str, done: int, total: int) -> None:
    """Ignore progress."""


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a temporary folder on the target's file system."""
    try:
        made = tempfile.TemporaryDirectory(prefix=f".{target.name[:100]}.", dir=target.parent)
    except OSError as error:
        raise InvalidInputError(
            f"'{target}' cannot be written: {error.strerror or error}", hint="give another path"
        ) from error
    with made as folder:
        yield Path(folder)
