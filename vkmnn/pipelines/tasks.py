"""Tasks by name, and `pipeline`, which opens them."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from vkmnn.base.records import dataclass
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.pipelines import networks
from vkmnn.pipelines.base import Pipeline
from vkmnn.pipelines.guessing import guess_task, is_painter, said_by_folder
from vkmnn.pipelines.options import checked_options, common_options
from vkmnn.pipelines.parts import task_of_parts
from vkmnn.pipelines.picture_input import picture_input
from vkmnn.pipelines.texts.inputs import takes_text
from vkmnn.sources.locate import task_model


@dataclass(frozen=True, slots=True)
class Task:
    """A pipeline task.

    Attributes:
        name: the name in transformers.pipeline, if it has the task.
        aliases: shorter names.
        module: the module of its pipeline.
        kind: the class of the pipeline.
        takes: argument of the pipeline: a loaded "network", or a "folder", the model as the caller
            passed it.
        says: description of the result, for lists.
        on: the kind of input: a "picture", a "text" or a "sound".
    """

    name: str
    aliases: Sequence[str]
    module: str
    kind: str
    takes: str
    says: str
    on: str = "picture"


_VISION = "vkmnn.pipelines.vision"
_TEXTS = "vkmnn.pipelines.texts"
_SOUNDS = "vkmnn.pipelines.sounds"

TASKS: Sequence[Task] = (
    Task("image-classification", ("classify",), f"{_VISION}.classify", "Classify", "network",
         "the most likely classes"),
    Task("object-detection", ("detect",), f"{_VISION}.detect", "Detect", "network",
         "boxes around objects"),
    Task("image-segmentation", ("segment", "semantic-segmentation"), f"{_VISION}.segment",
         "Segment", "network", "the class of each pixel"),
    Task("instance-segmentation", ("instances",), f"{_VISION}.segment", "SegmentThings", "network",
         "the pixels of each object"),
    Task("mask-generation", ("sam",), f"{_VISION}.prompted", "Prompted", "folder",
         "the object at a point or in a box"),
    Task("image-matting", ("matte", "matting"), f"{_VISION}.matte", "Matting", "network",
         "the foreground"),
    Task("depth-estimation", ("depth",), f"{_VISION}.depth", "Depths", "network",
         "the depth of each pixel"),
    Task("pose-estimation", ("pose", "keypoint-detection"), f"{_VISION}.pose", "PoseOf", "network",
         "keypoints of people"),
    Task("image-to-image", ("upscale", "super-resolution"), f"{_VISION}.upscale", "Upscale",
         "network", "a larger or restored image"),
    Task("optical-character-recognition", ("ocr",), f"{_VISION}.ocr", "ReadText", "folder",
         "lines of text"),
    Task("face-detection", ("face", "faces"), f"{_VISION}.faces", "Faces", "folder",
         "faces and their embeddings"),
    Task("image-feature-extraction", ("embed",), f"{_VISION}.embed", "Embed",
         "network", "a vector"),
    Task("zero-shot-image-classification", ("zero-shot", "clip"), f"{_VISION}.embed", "ZeroShot",
         "folder", "the best of several text labels"),
    Task("text-classification", ("classify-text", "sentiment-analysis"), f"{_TEXTS}.classify",
         "ClassifyText", "network", "the most likely classes of a text", "text"),
    Task("feature-extraction", ("embed-text", "sentence-similarity"), f"{_TEXTS}.embed",
         "EmbedText", "network", "the vector of a text", "text"),
    Task("translation", ("translate",), f"{_TEXTS}.generate", "Translate", "folder",
         "a text in another language", "text"),
    Task("summarization", ("summarize",), f"{_TEXTS}.generate", "Summarize", "folder",
         "a shorter text", "text"),
    Task("text2text-generation", ("text2text",), f"{_TEXTS}.generate", "TextToText", "folder",
         "a text that answers one", "text"),
    Task("text-to-image", ("paint",), "vkmnn.pipelines.diffusion.paint", "TextToImage", "folder",
         "an image for a text", "text"),
    Task("text-to-speech", ("speak", "tts", "text-to-audio"), f"{_SOUNDS}.speak", "Speak",
         "folder", "a text spoken", "text"),
    Task("automatic-speech-recognition", ("transcribe", "asr", "speech-to-text"),
         f"{_SOUNDS}.transcribe", "Transcribe", "folder", "what is said, and when", "sound"),
    Task("voice-activity-detection", ("vad",), f"{_SOUNDS}.activity", "VoiceActivity", "network",
         "when somebody speaks", "sound"),
)  # fmt: skip
"""All tasks."""

_BY_NAME = {name: task for task in TASKS for name in (task.name, *task.aliases)}


_PAIR = re.compile(r"translation_(\w+)_to_(\w+)")

_TWINS = (("image-classification", "text-classification"),
          ("image-feature-extraction", "feature-extraction"))  # fmt: skip
"""Tasks that do the same with images and with texts: each one's names serve for both."""


def task_of(name: str) -> Task:
    """Return a task by its name or alias.

    Raises:
        InvalidInputError: no task has this name.
    """
    found = _BY_NAME.get(name.lower().replace("_", "-"))
    if found is None:
        hint = nearest(name, _BY_NAME, "tasks")
        raise InvalidInputError(f"there is no task '{name}'", hint=hint)
    return found


def pipeline(task: str | None, model: Any, **options: Any) -> Pipeline:
    """Open a model for a task: `vkmnn.pipeline("detect", "yolo11n.onnx")("street.jpg")`.

    Args:
        task: its name, for example "object-detection" or "detect"; None or "auto" to detect it from
            the model's files and outputs.
        model: a path, a folder or zip archive, a URL, a name on the Hub, serialised bytes or an
            onnx.ModelProto; for tasks with several networks, a folder or a dictionary of them.
        options: `device`, `precision`, `labels`, `threshold`, `size`, `mean`, `std`, `channels`,
            `preprocess`, `batch`, and options of the task; see docs/pipelines.md.

    Returns:
        A pipeline: call it with an input or a list of them.

    Raises:
        InvalidInputError: the task or an option does not exist, or the model does not fit the task.
        ModelError: the model is missing or damaged.
        MissingExtraError: a package that the task needs is not installed.
    """
    pair = _PAIR.fullmatch(task or "")
    if pair is not None:  # as transformers names the languages
        task, options = "translation", {"source": pair[1], "target": pair[2], **options}
    if isinstance(model, Mapping):
        model = {role: task_model(one) for role, one in model.items()}
    model = task_model(model)
    known = None if task in (None, "auto") else task_of(str(task))
    if known is not None and known.name == "image-to-image" and is_painter(model):
        known = task_of("text-to-image")
    if known is not None and known.takes != "network":
        return _opened(known, model, options)
    said = None if known is not None else said_by_folder(model)
    if said is not None and task_of(said.task).takes == "folder":
        return _opened(task_of(said.task), model, options)
    parts = None if known is not None else task_of_parts(model)
    if parts is not None:
        return _opened(task_of(parts), model, options)
    loose = common_options(options)
    loaded = networks.load(model, loose)
    if known is not None:
        return _opened(_fitting(known, loaded), loaded, options)
    guess = guess_task(loaded, loose)
    found = task_of(guess.task)
    made = _opened(found, loaded if found.takes == "network" else model, options)
    if not guess.said:
        made.guess(f"the task is {found.name}, by {guess.reason}", "--task")
    return made


def _fitting(task: Task, loaded: networks.Loaded) -> Task:
    """Return a task, or its twin where the network takes what that one is called with."""
    for on_pictures, on_texts in _TWINS:
        if task.name == on_pictures and takes_text(loaded):
            return task_of(on_texts)
        if task.name == on_texts and picture_input(loaded.inputs) is not None:
            return task_of(on_pictures)
    return task


def _opened(task: Task, source: Any, options: dict[str, Any]) -> Pipeline:
    kind: Any = getattr(importlib.import_module(task.module), task.kind).variant(source)
    checked = checked_options(options, kind.own, task.name, kind.checks)
    made: Pipeline = kind(source, checked)
    return made
