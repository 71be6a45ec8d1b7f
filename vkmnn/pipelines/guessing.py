"""Detection of a model's task from its files or from the shapes of its outputs."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vkmnn.base.config_file import read_config, read_text
from vkmnn.errors import InvalidInputError, ModelFileError
from vkmnn.pipelines.description import Description, describe
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.output_shapes import Guess, by_shapes, likely_tasks
from vkmnn.pipelines.signatures import signature_of
from vkmnn.pipelines.texts.inputs import TEXT_VECTORS, takes_text
from vkmnn.pipelines.trimap_input import computes_matte

ULTRALYTICS: Mapping[str, str] = {
    "detect": "object-detection",
    "segment": "instance-segmentation",
    "classify": "image-classification",
    "pose": "pose-estimation",
    "obb": "object-detection",
}
"""Tasks by ultralytics' metadata."""

ARCHITECTURES: Sequence[tuple[str, str]] = (
    ("ForImageClassification", "image-classification"),
    ("ForObjectDetection", "object-detection"),
    ("ForSemanticSegmentation", "image-segmentation"),
    ("ForUniversalSegmentation", "image-segmentation"),
    ("ForDepthEstimation", "depth-estimation"),
    ("ForImageSuperResolution", "image-to-image"),
    ("ForImageMatting", "image-matting"),
    ("VitPoseForPoseEstimation", "pose-estimation"),
    ("SamModel", "mask-generation"),
    ("CLIPModel", "zero-shot-image-classification"),
    ("SiglipModel", "zero-shot-image-classification"),
    ("ForMaskedImageModeling", "image-feature-extraction"),
    ("ForSequenceClassification", "text-classification"),
    ("MarianMTModel", "translation"),
    ("M2M100ForConditionalGeneration", "translation"),
    *(
        (f"{kind}ForConditionalGeneration", "text2text-generation")
        for kind in ("T5", "Bart", "Pegasus", "LongT5", "BlenderbotSmall", "Blenderbot")
    ),
    ("VitsModel", "text-to-speech"),
    ("WhisperForConditionalGeneration", "automatic-speech-recognition"),
)
"""Tasks by the suffixes of names in `architectures` of config.json."""

CARD_TAGS: Mapping[str, str] = {
    "image-classification": "image-classification",
    "object-detection": "object-detection",
    "image-segmentation": "image-segmentation",
    "depth-estimation": "depth-estimation",
    "image-to-image": "image-to-image",
    "text-to-image": "text-to-image",
    "text-to-speech": "text-to-speech",
    "mask-generation": "mask-generation",
    "keypoint-detection": "pose-estimation",
    "image-feature-extraction": "image-feature-extraction",
    "zero-shot-image-classification": "zero-shot-image-classification",
    "text-classification": "text-classification",
    "feature-extraction": "feature-extraction",
    "automatic-speech-recognition": "automatic-speech-recognition",
    "translation": "translation",
    "summarization": "summarization",
    "text2text-generation": "text2text-generation",
    "voice-activity-detection": "voice-activity-detection",
    "sentence-similarity": "feature-extraction",
}
"""Tasks by `pipeline_tag` of a model card."""

_GENERAL = "text2text-generation"
"""A task of architectures that serve for several: a card says more."""
_TAG = re.compile(r"^pipeline_tag:\s*['\"]?([\w-]+)", re.MULTILINE)
_MOST_CARD = 1 << 20
INDEX = "model_index.json"
"""The file that describes the folders of a pipeline of diffusers."""


class UnknownTaskError(InvalidInputError):
    """The task of a network cannot be determined."""

    tasks: Sequence[tuple[str, str]] = ()
    """The likely tasks, and what each would make of the outputs."""
    array = ""
    """The value of --input that runs the network on an array."""


def said_by_folder(model: Any) -> Guess | None:
    """Return the task that a folder's files name, or the file beside a voice; else None.

    Raises:
        ModelFileError: one of the files is damaged.
    """
    if not isinstance(model, str | Path):
        return None
    if not Path(model).is_dir():
        voice = voice_file(Path(model))
        return None if voice is None else Guess("text-to-speech", str(voice), True)
    if is_painter(model):
        return Guess("text-to-image", str(Path(model) / INDEX), True)
    return _said(describe(Path(model), {}))


def voice_file(path: Path) -> Path | None:
    """Return the description of one of piper's voices, NAME.onnx.json; None for other networks."""
    beside = path.with_name(f"{path.name}.json")
    if path.suffix != ".onnx" or not beside.is_file():
        return None
    return beside if "phoneme_id_map" in read_config(beside) else None


def is_painter(model: Any) -> bool:
    """Return whether a model is a folder of a pipeline as diffusers writes it."""
    return isinstance(model, str | Path) and (Path(model) / INDEX).is_file()


def guess_task(loaded: Loaded, options: Options) -> Guess:
    """Return the task of an image or text network.

    Raises:
        InvalidInputError: no file states it, and the outputs match no known task.
    """
    said = _said(loaded.about)
    if said is not None and not _is_vision_part(said, loaded):
        return said
    if takes_text(loaded):
        return _of_text(loaded)
    if computes_matte(loaded):
        return Guess("image-matting", "its input, an image with a trimap")
    if hears_voices({arg.name for arg in loaded.inputs}):
        return Guess("voice-activity-detection", "its inputs, a sound, its rate and a state")
    classes = len(loaded.about.labels()[0])
    signature = signature_of(loaded, options, classes, lambda one: by_shapes(one) is not None)
    known = _unsupported(loaded.about)
    found = by_shapes(signature) if known is None else None
    if found is not None:
        return found
    shapes = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.outputs)
    error = UnknownTaskError(
        f"cannot determine the task of '{loaded.about.name}'; its outputs are {shapes}"
        if known is None
        else f"'{loaded.about.name}' is a part of {known}, for which there is no task"
    )
    error.tasks = likely_tasks(signature) if known is None else (("embed", "one vector"),)
    listed = ", ".join(f"{task} ({what})" for task, what in error.tasks)
    error.array = f"{loaded.inputs[0].name}=x.npy"
    error.hint = f"name the task: {listed}" if listed else "run it on arrays: vkmnn.load(model)"
    raise error


_GENERATORS = ("ForConditionalGeneration", "EncoderDecoderModel", "ForCausalLM", "ForVision2Seq")


def _unsupported(about: Description) -> str | None:
    """Return the architecture in config.json if it writes text about images."""
    named = about.config.texts("architectures") if about.config.is_list("architectures") else []
    return next((name for name in named if name.endswith(_GENERATORS)), None)


def _is_vision_part(said: Guess, loaded: Loaded) -> bool:
    """Return whether a network is the part of CLIP that embeds images."""
    whole = any("logits" in arg.name or "text" in arg.name for arg in loaded.outputs)
    return said.task == "zero-shot-image-classification" and not whole


def _of_text(loaded: Loaded) -> Guess:
    """Return the task of a network of tokens: one table of logits classifies a text."""
    first = loaded.outputs[0]
    if "logit" in first.name and first.shape is not None and len(first.shape) == 2:
        return Guess("text-classification", "its output, scores of a text")
    if any(word in one.name for one in loaded.outputs for word in TEXT_VECTORS):
        return Guess("feature-extraction", "its output, vectors of a text")
    names = ", ".join(f"{arg.name} {arg.shape}" for arg in loaded.outputs)
    raise InvalidInputError(
        f"the task of '{loaded.about.name}' on texts is unknown; its outputs are {names}",
        hint="name the task: text-classification, feature-extraction; vkmnn.llm.load generates",
    )


def hears_voices(inputs: Collection[str]) -> bool:
    """Return whether inputs are those of Silero's networks: a rate, and a state or two."""
    return (
        "sr" in inputs
        and len(inputs) < 5
        and ("state" in inputs or ("h" in inputs and "c" in inputs))
    )


def _said(about: Description) -> Guess | None:
    """Return the task that the files state."""
    if "character" in about.properties:
        return Guess("optical-character-recognition", "the characters in its metadata", True)
    word = about.properties.get("task", "")
    if word in ULTRALYTICS:
        return Guess(ULTRALYTICS[word], "the model's metadata", True)
    named = _by_architecture(about)
    if named is not None and named.task != _GENERAL:
        return named
    return _by_card(about) or named


def _by_architecture(about: Description) -> Guess | None:
    """Return the task that config.json names."""
    named = about.config.texts("architectures") if about.config.is_list("architectures") else []
    for name in named:
        for end, task in ARCHITECTURES:
            if name.endswith(end):
                return Guess(task, str(about.config.path), True)
    if "pretrained_cfg" in about.config:  # timm's models are classifiers
        return Guess("image-classification", str(about.config.path), True)
    return None


def _by_card(about: Description) -> Guess | None:
    """Return the task that the model's card names."""
    card = about.folder / "README.md" if about.folder else None
    if card is None or not card.is_file():
        return None
    try:
        tag = _TAG.search(read_text(card, _MOST_CARD))
    except ModelFileError:
        tag = None
    return Guess(CARD_TAGS[tag[1]], str(card), True) if tag and tag[1] in CARD_TAGS else None
