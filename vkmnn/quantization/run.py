"""`vkmnn.quantize`: quantise a float model and measure the cost in accuracy."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.arguments import checked_number, target_path
from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.stored import stored_by_type
from vkmnn.errors import (
    BudgetError,
    ConversionError,
    InvalidInputError,
    PlacementError,
    nearest,
)
from vkmnn.quantization import model as models
from vkmnn.quantization import sensitivity as sensitivities
from vkmnn.quantization import tools
from vkmnn.quantization.accuracy import Reference, on_device
from vkmnn.quantization.advice import (
    advice_for,
    advice_for_device,
    refuse_formats,
    refuse_quantized,
)
from vkmnn.quantization.blocks import plain_pack
from vkmnn.quantization.calibration import Calibration, Sample, Sizes, random_sample
from vkmnn.quantization.candidates import Candidate, Quantiser, StaticQuantiser, WeightQuantiser
from vkmnn.quantization.language.folders import is_language_model
from vkmnn.quantization.language.run import quantize_language
from vkmnn.quantization.report import LayerError, Measured, Progress, Quantized, Reached, Size
from vkmnn.quantization.sample_list import Reading, Samples, Tell
from vkmnn.quantization.samples import open_samples
from vkmnn.quantization.scheme import ActivationType, Method, Scheme, WeightType
from vkmnn.quantization.search import Search
from vkmnn.quantization.targets import Target, read_targets, values_of
from vkmnn.sources.locate import model_file, task_model

if TYPE_CHECKING:
    import onnx

    Model = str | Path | bytes | onnx.ModelProto

COMPARED = 16
"""Samples on which models are compared without a target, at most."""
SAMPLES = 200
"""Samples that are read, at most, by default."""
_MADE_UP = 4


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
    samples: int = SAMPLES,
    target: str | Sequence[str] | None = None,
    sensitivity: bool = False,
    task: str | None = None,
    options: Mapping[str, Any] | None = None,
    profile: str | None = None,
    tell: Tell | None = None,
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
        symmetric: store no zero points for weights quantised in blocks.
        activations: "int8" (symmetric) or "uint8"; needs `calibration`.
        calibration: a folder, pattern or file of pictures, texts or arrays (.npz, .npy), or arrays
            by the names of inputs, all samples along the first axis; the outputs are also compared
            on it. Pictures and texts are prepared as `vkmnn.pipeline` prepares them.
        method: how ranges of activations are computed from the samples.
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
        samples: how many samples are read, at most, spread over all of `calibration`.
        target: "top1>=99%", or a list: the most sensitive nodes stay in float until the model meets
            it on half of the samples, which calibration does not see. Measures: top1, accuracy,
            drop, cosine, psnr, rms, largest.
        sensitivity: measure the error that each node causes if it alone is quantised.
        task: the task by which pictures and texts are prepared; None to detect it.
        options: options of `vkmnn.pipeline` for them: `size`, `mean`, `std`, `channels`, `labels`.
        profile: the profile of a device on which the time of a run is predicted, with a target.
        tell: called with a sentence for each assumption about samples.

    Raises:
        MissingExtraError: onnxruntime is not installed.
        ModelError: the model is missing, damaged or not a model.
        ConversionError: onnxruntime's tools cannot quantise the model.
        TargetMissedError: no quantised model meets the target.
        InvalidInputError: an argument or the calibration data is not valid, with the input named;
            the model is quantised already; or the file cannot be written.
    """
    stored = {"weights": weights, "block": block, "symmetric": symmetric, "method": method}
    scheme = _scheme({**stored, "activations": activations, "per_channel": per_channel}, exclude)
    report, hear = progress or _say_nothing, tell or _hear_nothing
    samples = checked_number(samples, "samples", 1)
    model = task_model(model)
    if isinstance(model, str | Path) and is_language_model(Path(model)):
        text = _text_of(scheme, calibration, target, sensitivity)
        return quantize_language(Path(model), path, scheme, text, samples, device, report, hear)
    job = _Job(
        target_path(path, ".onnx"), scheme, read_targets(target), sensitivity, compare, device,
        profile, report, [], hear,
    )  # fmt: skip
    job.check(calibration)
    tools.need_tools()
    model = model_file(model)
    proto = _loaded(model, scheme)
    inputs = models.inputs_of(proto)
    reading = Reading(model, inputs, samples, task, options or {}, device, job.note)
    if external_data is None:
        external_data = models.has_external_data(model)
    if external_data or models.is_large(proto):
        _keep_weights(model, job.path)
    if calibration is not None:
        with open_samples(calibration, reading) as found:
            return job.run(model, proto, found, external_data, made_up=False)
    chosen = _random(reading, sizes or {}, seed, _MADE_UP if job.wants_samples else 0)
    return job.run(model, proto, chosen, external_data, made_up=bool(chosen))


def _scheme(stored: Mapping[str, Any], exclude: Sequence[str]) -> Scheme:
    """Return the checked options of storage."""
    if isinstance(exclude, str):
        raise InvalidInputError(
            f"exclude is a list of names, not {exclude!r}", hint=f"write ['{exclude}']"
        )
    scheme = Scheme(**stored, exclude=tuple(exclude))
    scheme.check()
    return scheme


def _loaded(model: Model, scheme: Scheme) -> onnx.ModelProto:
    """Return a model with its data.

    Raises:
        InvalidInputError: it is no float model in ONNX, or lacks an excluded node.
    """
    refuse_formats(model)
    proto = models.load(model)
    refuse_quantized(proto, scheme.activations)
    _check_excluded(proto, scheme.exclude)
    return proto


def _random(reading: Reading, sizes: Sizes, seed: int, count: int) -> Samples:
    """Return random samples."""
    made = [random_sample(reading.inputs, sizes, seed + index) for index in range(count)]
    return Samples(len(made), made.__getitem__)


def _text_of(
    scheme: Scheme, calibration: Calibration | None, target: object, sensitivity: bool
) -> str | Path | None:
    """Return the text that calibrates a language model.

    Raises:
        InvalidInputError: it is no file; or an option is not for language models.
    """
    for what, given, hint in (
        ("activations", scheme.activations, "weights are quantised, in int4 or int8"),
        ("target", target, "the perplexity is reported: --calibrate text.txt"),
        ("sensitivity", sensitivity, "the perplexity is reported: --calibrate text.txt"),
    ):
        if given:
            raise InvalidInputError(f"{what} is not for language models", hint=hint)
    if calibration is None or isinstance(calibration, str | Path):
        return calibration
    raise InvalidInputError(
        "a language model is calibrated by text", hint="give the path of a .txt file"
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One quantisation: what is wanted, and where it goes."""

    path: Path
    scheme: Scheme
    targets: Sequence[Target]
    sensitivity: bool
    compare: bool
    device: str | int
    profile: str | None
    report: Progress
    notes: list[str]
    hear: Tell

    def note(self, text: str) -> None:
        """Keep a sentence for the result, and pass it on."""
        self.notes.append(text)
        self.hear(text)

    @property
    def wants_samples(self) -> bool:
        """Whether the model runs."""
        return self.compare or self.sensitivity

    def check(self, calibration: Calibration | None) -> None:
        """Raise InvalidInputError if samples are needed and not given."""
        what = ""
        if self.scheme.activations:
            what = f"activations in {self.scheme.activations} need"
        elif self.targets:
            what = "a target needs"
        if what and calibration is None:
            raise InvalidInputError(
                f"{what} calibration data",
                hint="--calibrate FOLDER of pictures or texts, or data.npz; or "
                "calibration={name: array}: about 100 inputs from real use",
            )

    def run(
        self,
        model: Model,
        proto: onnx.ModelProto,
        samples: Samples,
        external_data: bool,
        made_up: bool,
    ) -> Quantized:
        """Quantise, measure, and write the result when it is complete."""
        before = _sizes(proto)
        if self.targets and len(samples) < 2:
            raise InvalidInputError(
                "a target needs at least two samples: one for calibration, one held out",
                hint="give about 100 samples of real use",
            )
        known: Samples = samples[::2] if self.targets else samples
        with _beside(self.path) as folder:
            quantiser = self._quantiser(proto, known, folder)
            full = quantiser.make({}, self.report)
            rank = partial(self._ranked, quantiser, full, known, folder)
            ranked: Sequence[LayerError] = rank() if self.sensitivity else ()
            if self.targets:
                held: Samples = samples[1::2]
                chosen, measured, reached, found = self._searched(
                    quantiser, full, held, folder, lambda: ranked or rank()
                )
                ranked = ranked or found
                compared = held
            else:
                chosen, reached = full, None
                compared = samples.spread(COMPARED) if self.compare else samples[:0]
                measured = self._compared(model, chosen, compared, folder)
            external_data = external_data or models.is_large(chosen.proto)
            files = models.save(chosen.proto, folder / self.path.name, external_data)
            for file in files:
                file.replace(self.path.with_name(file.name))
        after = _sizes(chosen.proto)
        correct = measured.correct, measured.correct_before
        advice = (
            advice_for(chosen.proto, self.scheme, before, after, measured, made_up),
            advice_for_device(self.scheme.activations, self.device),
        )
        return Quantized(
            path=self.path,
            files=tuple(self.path.with_name(file.name) for file in reversed(files)),
            before=before,
            after=after,
            quantized=chosen.quantized,
            in_float=chosen.in_float,
            accuracy=measured.outputs,
            samples=len(compared),
            made_up=made_up,
            advice="; ".join(one for one in advice if one),
            correct=None if None in correct else correct,  # type: ignore[arg-type]
            sensitivity=tuple(ranked),
            reached=reached,
            notes=tuple(self.notes),
        )

    def _quantiser(self, proto: onnx.ModelProto, samples: Samples, folder: Path) -> Quantiser:
        if self.scheme.activations:
            return StaticQuantiser(proto, self.scheme, samples, folder, self.report)
        return WeightQuantiser(proto, self.scheme, plain_pack)

    def _ranked(
        self, quantiser: Quantiser, full: Candidate, samples: Samples, folder: Path
    ) -> list[LayerError]:
        reference = self._reference(quantiser, samples.spread(sensitivities.SAMPLES), folder)
        return sensitivities.rank(quantiser, full, reference, folder, self.report)

    def _reference(self, quantiser: Quantiser, samples: Samples, folder: Path) -> Reference:
        """Return the float model's outputs, by onnxruntime."""
        path = folder / "reference.onnx"
        models.save(quantiser.proto, path, models.is_large(quantiser.proto))
        with tools.opened(path) as run:
            return Reference(run, samples, self.report)

    def _searched(
        self,
        quantiser: Quantiser,
        full: Candidate,
        held: Samples,
        folder: Path,
        rank: Any,
    ) -> tuple[Candidate, Measured, Reached, Sequence[LayerError]]:
        """Return the model that meets the targets, its accuracy, and the ranked nodes."""
        reference = self._reference(quantiser, held, folder)
        ranked: list[LayerError] = []

        def order() -> list[LayerError]:
            ranked.extend(rank())
            return ranked

        def check(candidate: Candidate) -> Measured:
            return self._measured(reference, candidate, folder)

        search = Search(quantiser, self.targets, reference, folder, self.report)
        found = search.run(full, order, check if self.compare else None)
        protos = {"float": quantiser.proto, "full": full.proto, "chosen": found.candidate.proto}
        reached = Reached(
            {str(one): values_of([one], found.measured)[one.name] for one in self.targets},
            found.left,
            len(reference),
            found.full,
            sum(size.nbytes for size in _sizes(full.proto).values()),
            self._predicted(protos, held[0], folder),
        )
        return found.candidate, found.measured, reached, ranked

    def _predicted(
        self, protos: Mapping[str, onnx.ModelProto], sample: Sample, folder: Path
    ) -> dict[str, float]:
        """Return the predicted microseconds of a run of each model."""
        if self.profile is None:
            return {}
        from vkmnn.opening import load_network
        from vkmnn.opening.planned import plan_for

        made = {}
        for name, proto in protos.items():
            path = folder / "planned.onnx"
            models.save(proto, path, models.is_large(proto))
            try:
                plan = plan_for(load_network(path), self.profile, "high", sample, places=False)
            except (ConversionError, PlacementError, BudgetError) as error:
                self.notes.append(f"the time cannot be predicted: {error.message}")
                return {}
            made[name] = plan.forecast.predicted_us
        return made

    def _measured(self, reference: Reference, candidate: Candidate, folder: Path) -> Measured:
        """Compare a model on the device with the float model."""
        path = folder / "candidate.onnx"
        models.save(candidate.proto, path, models.is_large(candidate.proto))
        with on_device(path, self.device) as run:
            return reference.measure(run, self.report)

    def _compared(
        self, model: Model, candidate: Candidate, samples: Samples, folder: Path
    ) -> Measured:
        """Compare both models on the device."""
        if not samples:
            return Measured(())
        with on_device(model, self.device) as run:
            reference = Reference(run, samples, self.report, 2 * len(samples))
        return self._measured(reference, candidate, folder)


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


def _hear_nothing(text: str) -> None:
    """Ignore a note."""


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
