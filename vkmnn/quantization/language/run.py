"""Quantise the decoder of a language model, and write a folder that `vkmnn.llm` opens."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vkmnn.base.records import dataclass
from vkmnn.converter.onnx.stored import stored_by_type
from vkmnn.errors import InvalidInputError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.llm.layout import read_layout
from vkmnn.llm.networks import plain_graph
from vkmnn.quantization import model as models
from vkmnn.quantization.advice import refuse_quantized
from vkmnn.quantization.blocks import pack, plain_pack
from vkmnn.quantization.language.feedback import pack_with_feedback
from vkmnn.quantization.language.folders import open_source, write_folder
from vkmnn.quantization.language.statistics import Moments
from vkmnn.quantization.language.texts import Windows, feeds_of, perplexity, read_windows
from vkmnn.quantization.packing import Pack, pack_weights
from vkmnn.quantization.report import FloatNode, Perplexity, Progress, Quantized, Size
from vkmnn.quantization.scheme import Scheme

if TYPE_CHECKING:
    import onnx

Tell = Callable[[str], object]

MOST_WINDOWS = 32
"""Windows of calibration text that are run, at most."""
PLAIN, WEIGHTED, FEEDBACK = "", ", weighted by the inputs", ", with error feedback"


@dataclass(frozen=True, slots=True, eq=False)
class _Made:
    """A quantised network in a folder."""

    name: str
    folder: Path
    value: float
    after: Mapping[str, Size]
    quantized: Sequence[str]
    in_float: Sequence[FloatNode]


def quantize_language(
    model: Path,
    target: str | Path,
    scheme: Scheme,
    text: str | Path | None,
    samples: int,
    device: str | int,
    progress: Progress,
    tell: Tell,
) -> Quantized:
    """Quantise a language model.

    With a text, scales weighted by the inputs and rounding with error feedback are tried as well,
    and what has the lowest perplexity on held-out parts of the text is written.

    Args:
        model: a folder, or a GGUF file.
        target: the folder to write; it does not exist yet, or is empty.
        scheme: how weights are stored.
        text: text for calibration: .txt, .jsonl, or a folder of these.
        samples: maximum number of windows of the text.
        device: the device that runs the model.
        progress: called with the steps.
        tell: called with sentences on what was assumed.

    Raises:
        ModelFileError: the model's layout is not known.
        InvalidInputError: it is quantised already; or the folder cannot be written.
    """
    notes: list[str] = []

    def noted(line: str) -> None:
        notes.append(line)
        tell(line)

    source = open_source(model)
    proto = source.file.proto
    refuse_quantized(proto)
    before = _sizes(proto)
    windows = None
    if text is not None:
        windows = read_windows(text, source.layout, min(samples, MOST_WINDOWS), noted)
    moments = None
    if windows is not None:
        feeds = feeds_of(source.layout)
        moments = Moments(plain_graph(source.file), feeds, windows.calibration, device)
    job = _Job(model, scheme, windows, moments, device, progress)
    with _beside(Path(target)) as folder:
        found = [job.made(PLAIN, folder)]
        values: list[Perplexity] = []
        if windows is not None:
            values.append(Perplexity("float", job.measured(model)))
            found += [job.made(one, folder) for one in (WEIGHTED, FEEDBACK)]
            found.sort(key=lambda one: -one.value)
            values += [Perplexity(one.name, one.value) for one in found]
        chosen = found[-1]
        files = _moved(chosen.folder, Path(target))
    return Quantized(
        path=Path(target),
        files=files,
        before=before,
        after=chosen.after,
        quantized=tuple(chosen.quantized),
        in_float=tuple(chosen.in_float),
        accuracy=(),
        samples=len(windows.held_out) if windows else 0,
        made_up=False,
        perplexities=tuple(values),
        notes=tuple(notes),
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """One quantisation: the model, how weights are stored, and the text."""

    model: Path
    scheme: Scheme
    windows: Windows | None
    moments: Moments | None
    device: str | int
    progress: Progress

    def made(self, method: str, folder: Path) -> _Made:
        """Write a folder with weights that were rounded by a method."""
        import onnx

        source = open_source(self.model)
        reader = source.reader()
        proto = onnx.ModelProto()
        proto.CopyFrom(source.file.proto)
        models.name_nodes(proto)
        name = f"{self.scheme.weights}{method}"
        excluded = dict.fromkeys(self.scheme.exclude, "excluded")
        report = self.progress

        def told(what: str, done: int, total: int) -> None:
            report(f"{what} ({name})", done, total)

        quantized, in_float = pack_weights(
            proto, self.scheme, self._pack(method), told, excluded, reader.array
        )
        reader.complete(proto)
        after = _sizes(proto)
        path = folder / f"made{len(list(folder.iterdir()))}"
        path.mkdir()
        write_folder(source, proto, path)
        del proto
        value = self.measured(path) if self.windows else np.inf
        return _Made(name, path, value, after, quantized, in_float)

    def _pack(self, method: str) -> Pack:
        moments = self.moments
        if method == PLAIN or moments is None:
            return plain_pack

        def packed(
            matrix: Array, bits: int, block: int, symmetric: bool, weight: str
        ) -> tuple[Array, Array, Array]:
            if weight not in moments:
                return pack(matrix, bits, block, symmetric)
            known = moments.of(weight)
            if method == FEEDBACK:
                return pack_with_feedback(matrix, bits, block, symmetric, known)
            return pack(matrix, bits, block, symmetric, np.diagonal(known).astype(np.float32))

        return packed

    def measured(self, model: Path) -> float:
        """Return the perplexity of a model on the held-out text."""
        if self.windows is None:
            return np.inf
        held, layout = self.windows.held_out, read_layout(model)
        source = layout.described.network() if layout.described else layout.decoder
        with InferenceSession(plain_graph(source), self.device) as session:
            return perplexity(
                session,
                layout,
                held,
                lambda done: self.progress("measuring perplexity", done, len(held)),
            )


def _sizes(proto: onnx.ModelProto) -> dict[str, Size]:
    return {name: Size(*stored) for name, stored in stored_by_type(proto).items()}


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    """Yield a temporary folder on the target's file system.

    Raises:
        InvalidInputError: the target is no folder, is not empty, or cannot be written.
    """
    if target.suffix == ".onnx" or target.is_file():
        raise InvalidInputError(
            f"a language model becomes a folder, and '{target}' names a file",
            hint=f"give the path of a folder: -o {target.with_suffix('')}",
        )
    if target.is_dir() and any(target.iterdir()):
        raise InvalidInputError(
            f"the folder '{target}' is not empty", hint="give another path, or remove it first"
        )
    try:
        made = tempfile.TemporaryDirectory(
            prefix=f".{target.name[:100]}.", dir=target.absolute().parent
        )
    except OSError as error:
        raise InvalidInputError(
            f"'{target}' cannot be written: {error.strerror or error}", hint="give another path"
        ) from error
    with made as name:
        yield Path(name)


def _moved(made: Path, target: Path) -> tuple[Path, ...]:
    """Move a finished folder to its place, and return its files."""
    if target.is_dir():
        target.rmdir()
    made.replace(target)
    return tuple(sorted(path for path in target.rglob("*") if path.is_file()))
