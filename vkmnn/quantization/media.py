"""Pictures and texts as samples, prepared as `vkmnn.pipeline` prepares them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from vkmnn.errors import InvalidInputError, plural
from vkmnn.pipelines import PicturePipeline, Pipeline, pipeline
from vkmnn.pipelines.texts.text_pipeline import TextPipeline
from vkmnn.quantization.calibration import Sample
from vkmnn.quantization.sample_files import Entry
from vkmnn.quantization.sample_list import Reading, Samples


@contextmanager
def media_samples(kind: str, entries: Sequence[Entry], how: Reading) -> Iterator[Samples]:
    """Yield samples of pictures or texts.

    Args:
        kind: "picture" or "text".
        entries: the files or texts.
        how: how they are prepared.

    Raises:
        InvalidInputError: the model takes none of these, or its task is not known.
    """
    options = {**how.options, "device": how.device, "tell": how.tell}
    if kind == "picture":
        options["preprocess"] = "host"
    with pipeline(how.task, how.model, **options) as pipe:
        classes = _numbers(pipe, entries, how)
        if kind == "picture" and isinstance(pipe, PicturePipeline):
            yield _pictures(pipe, entries, classes)
        elif kind == "text" and isinstance(pipe, TextPipeline):
            yield Samples(
                len(entries),
                lambda index: pipe.feeds(entries[index].value),
                None if classes is None else [[one] for one in classes],
            )
        else:
            raise InvalidInputError(
                f"the calibration data holds {kind}s, and a model for {pipe.task} takes others",
                hint="record inputs of the network: numpy.savez('data.npz', **{name: array})",
            )


def _pictures(
    pipe: PicturePipeline[Any], entries: Sequence[Entry], classes: Sequence[int] | None
) -> Samples:
    """Return samples of as many pictures as the network runs at once."""
    size = pipe.network.batch or 1

    def read(index: int) -> Sample:
        part = entries[index * size : (index + 1) * size]
        return pipe.feeds([one.value for one in part])

    count = -(-len(entries) // size)
    if classes is None:
        return Samples(count, read)
    whole = [*classes, *[classes[-1]] * (count * size - len(classes))]
    return Samples(count, read, [whole[n * size : (n + 1) * size] for n in range(count)])


def _numbers(pipe: Pipeline, entries: Sequence[Entry], how: Reading) -> list[int] | None:
    """Return the class numbers of samples; None if they have no labels."""
    labels = [one.label for one in entries]
    if any(one is None for one in labels):
        return None
    known = {name.lower(): number for number, name in reversed([*enumerate(pipe.names(0))])}
    texts = sorted({str(one) for one in labels})
    if all(one.lower() in known for one in texts):
        return [known[str(one).lower()] for one in labels]
    if all(one.isdecimal() for one in texts):
        return [int(one) for one in labels if one is not None]
    if known:
        wrong = next(one for one in texts if one.lower() not in known)
        how.tell(f"'{wrong}' is no class of the model: labels are not compared")
        return None
    shown = ", ".join(f"{name} {number}" for number, name in enumerate(texts[:3]))
    how.tell(
        f"{plural(len(texts), 'class', 'classes')} are numbered in the order of their names: "
        f"{shown}{', …' if len(texts) > 3 else ''}; choose with --labels FILE"
    )
    return [texts.index(str(one)) for one in labels]
