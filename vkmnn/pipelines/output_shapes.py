"""Tasks by the names and shapes of a network's outputs, and the tasks that they may mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vkmnn.base.records import dataclass
from vkmnn.pipelines.heads.detection import head_of
from vkmnn.pipelines.heads.faces import is_retinaface
from vkmnn.pipelines.heads.final import mask_per_box, points_per_box
from vkmnn.pipelines.heads.mediapipe import kind_of, marks_of
from vkmnn.pipelines.heads.signature import Output, Signature, channels_of
from vkmnn.pipelines.heads.yolo import is_pose, prototypes


@dataclass(frozen=True, slots=True)
class Guess:
    """A task, the reason for it, and whether a file states it."""

    task: str
    reason: str
    said: bool = False


def by_shapes(signature: Signature) -> Guess | None:
    """Return the task that outputs determine; None if they fit several tasks or none."""
    return next((Guess(task, why) for task, why, matches in SHAPES if matches(signature)), None)


def likely_tasks(signature: Signature) -> Sequence[tuple[str, str]]:
    """Return the tasks that outputs may mean, and what each makes of them; none if none fits."""
    kinds = {_kind_of(one) for one in signature.outputs}
    alike = len({channels_of(one.shape) if one.rank == 4 else one for one in signature.outputs})
    return _LIKELY.get(kinds.pop(), ()) if len(kinds) == alike == 1 else ()


def _kind_of(one: Output) -> str:
    inner = [side for side in one.shape[1:] if side != 1]
    if not inner:
        return "number"
    if len(inner) == 1 and one.rank in (2, 4):
        return "vector"
    if one.rank == 4:
        return "map" if channels_of(one.shape) == 1 else "maps"
    return {2: "vector", 3: "table"}.get(one.rank, "")


_LIKELY: Mapping[str, Sequence[tuple[str, str]]] = {
    "map": (
        ("segment", "the pixels of one class"),
        ("matte", "the foreground, cut out"),
        ("depth", "a depth for each pixel"),
        ("ocr", "boxes around lines of text"),
    ),
    "maps": (
        ("segment", "the class of each pixel"),
        ("pose", "the highest point of each map"),
        ("embed", "one vector"),
    ),
    "table": (
        ("ocr --labels FILE", "a line of text; FILE lists the characters, one per line"),
        ("embed", "one vector"),
    ),
    "vector": (
        ("embed", "a vector to compare images by"),
        ("classify", "the score of each class"),
    ),
    "number": (("classify", "the probability of one class"),),
}
"""Tasks by the kind of all outputs."""

# --- rules ----------------------------------------------------------------------------------------


def _named(*words: str) -> Callable[[Signature], bool]:
    return lambda signature: signature.named(*words) is not None


_VECTOR_SIZES = frozenset({128, 192, 256, 384, 512, 640, 768, 1024, 1280, 1536, 2048})
"""Usual lengths of embeddings; classifiers with as many classes are rare."""
_SCORE_NAMES = ("logit", "prob", "class", "score", "softmax", "predict")
_VECTOR_NAMES = ("embed", "feature", "pooler_output", "last_hidden_state")


def _scores(signature: Signature) -> bool:
    """One table of scores [n, classes], alone or with features."""
    found = [one for one in signature.outputs if _is_scores(one, signature)]
    return bool(found) and len(signature.outputs) <= 2 and not _points(signature)


def _points(signature: Signature) -> bool:
    return signature.named("landmark", "keypoint") is not None


def _is_scores(one: Output, signature: Signature) -> bool:
    inner = one.shape[1:]
    wide = [side for side in inner if side != 1]
    if len(inner) not in (1, 3) or len(wide) != 1 or inner[0] == 1 or (wide[0] or 2) < 2:
        return False
    named = any(word in one.name.lower() for word in _SCORE_NAMES)
    return bool(signature.classes) or named or wide[0] not in _VECTOR_SIZES


def _vectors(signature: Signature) -> bool:
    """Vectors or sequences named as embeddings, or ArcFace's for images of 112 pixels."""
    found = [one for one in signature.outputs
             if any(word in one.name.lower() for word in _VECTOR_NAMES)]  # fmt: skip
    if any(one.rank in (2, 3) or one.shape[2:] == (1, 1) for one in found):
        return len(found) == len(signature.outputs) or not _maps(signature)
    (first, *others) = signature.outputs or (Output("", ()),)
    wide = first.rank == 2 and (first.shape[1] or 0) in _VECTOR_SIZES
    return signature.size == (112, 112) and wide and not others and not signature.classes


def _detects(signature: Signature) -> bool:
    return head_of(signature) is not None


def _faces(signature: Signature) -> bool:
    """Scores, boxes and five points for each of three grids."""
    last = sorted(one.shape[-1] or 0 for one in signature.outputs if one.shape)
    if is_retinaface(signature) or kind_of(signature) == "face":
        return True
    return last in ([1] * 3 + [4] * 3 + [10] * 3, [1] * 6 + [4] * 3 + [10] * 3)


def _things(signature: Signature) -> bool:
    """A table of boxes with prototypes of masks, or a mask per box."""
    ranks = sorted(one.rank for one in signature.outputs)
    with_prototypes = ranks == [3, 4] and prototypes(signature) is not None
    return with_prototypes or mask_per_box(signature) is not None


def _simcc(signature: Signature) -> bool:
    """Two tables [n, points, ..], whose lengths are multiples of the width and height."""
    if len(signature.outputs) != 2 or any(one.rank != 3 for one in signature.outputs):
        return False
    if signature.named("simcc"):
        return True
    first, second = (one.shape for one in signature.outputs)
    if signature.size is None or first[1] != second[1] or not (first[2] and second[2]):
        return False
    height, width = signature.size
    return (
        first[2] % width == 0
        and second[2] % height == 0
        and (first[2] // width == second[2] // height)
    )


def _maps(signature: Signature) -> list[Output]:
    """Return the outputs with four axes."""
    return [one for one in signature.outputs if one.rank == 4]


def _heat(signature: Signature) -> bool:
    """Heat maps [n, points, ..] at a quarter of the input: a portrait format, or COCO's points."""
    found = _maps(signature)
    if len(found) != 1 or signature.size is None or len(signature.outputs) != 1:
        return False
    quarter = tuple(side // 4 for side in signature.size)
    usual = signature.size[0] > signature.size[1] or found[0].shape[1] == _COCO_POINTS
    return found[0].shape[2:] == quarter and found[0].shape[1] != 1 and usual


_COCO_POINTS = 17


def _movenet(signature: Signature) -> bool:
    """Row, column and score of each point [n, 1, 17, 3], or of six people [n, 6, 56]."""
    if len(signature.outputs) != 1:
        return False
    (one,) = signature.outputs
    return one.like(None, 1, _COCO_POINTS, 3) or one.like(None, 6, 3 * _COCO_POINTS + 5)


def _mediapipe(signature: Signature) -> bool:
    detects = kind_of(signature) in ("palm", "person")
    return detects or (marks_of(signature) is not None and not signature.classes)


def _pointed(signature: Signature) -> bool:
    return points_per_box(signature) is not None


def _named_points(signature: Signature) -> bool:
    one = signature.named("heatmap", "keypoint")
    return one is not None and one.rank == 4


def _queries(signature: Signature) -> bool:
    """Classes and masks of queries: MaskFormer, Mask2Former."""
    return signature.named("masks_queries", "pred_masks") is not None


def _depth(signature: Signature) -> bool:
    """A map of floats [n, rows, columns]."""
    one = signature.outputs[0] if len(signature.outputs) == 1 else None
    if one is None or one.rank != 3 or one.integer or None in one.shape[1:]:
        return False
    return signature.size is not None and one.shape[1:] == signature.size


def _pictures(signature: Signature) -> bool:
    """An image: three channels, or one at a multiple of the input size."""
    found = _maps(signature)
    if len(found) != 1 or len(signature.outputs) != 1 or signature.classes:
        return False
    sides, size = found[0].shape, signature.size
    if signature.named("logit", "class", "seg"):
        return False
    if sides[1] == 3 or sides[3] == 3:
        return size is None or max(one or size[0] for one in sides[1:]) >= size[0]
    if size is None or sides[1] != 1 or None in sides[2:]:
        return False
    return all((have or 0) > want for have, want in zip(sides[2:], size, strict=True))


def _classes(signature: Signature) -> bool:
    """Scores of several classes, or the class index, for each pixel; auxiliary maps are alike."""
    outputs = signature.outputs
    if signature.named(*_VECTOR_NAMES):
        return False
    if len(outputs) == 1 and outputs[0].integer and outputs[0].rank in (3, 4):
        return True
    counts = {channels_of(one.shape) for one in outputs if one.rank == 4}
    return len(counts) == 1 and 1 not in counts and all(one.rank == 4 for one in outputs)


def _named_classes(signature: Signature) -> bool:
    one = signature.named("segment")
    return one is not None and one.rank in (3, 4)


SHAPES: Sequence[tuple[str, str, Callable[[Signature], bool]]] = (
    ("zero-shot-image-classification", "its output logits_per_image", _named("logits_per_image")),
    ("face-detection", "its outputs, which match a face detector", _faces),
    ("pose-estimation", "its outputs, two coordinate vectors per point", _simcc),
    ("image-segmentation", "its query masks", _queries),
    ("pose-estimation", "its outputs, boxes with points", _pointed),
    ("instance-segmentation", "its outputs, boxes with masks", _things),
    ("pose-estimation", "its output, which matches MoveNet", _movenet),
    ("pose-estimation", "its values per box, as many as YOLO-pose has", is_pose),
    ("pose-estimation", "its outputs, which match a network of MediaPipe", _mediapipe),
    ("object-detection", "its outputs, which match a detector", _detects),
    ("depth-estimation", "the name of its output", _named("depth", "disparity")),
    ("image-matting", "the name of its output", _named("alpha", "matte", "pha", "foreground")),
    ("pose-estimation", "the name of its output", _named_points),
    ("image-segmentation", "the name of its output", _named_classes),
    ("image-feature-extraction", "its output, a vector", _vectors),
    ("image-classification", "its single table of scores", _scores),
    ("pose-estimation", "its output, a heat map per point", _heat),
    ("depth-estimation", "its output, a number per pixel", _depth),
    ("image-to-image", "its output, an image", _pictures),
    ("image-segmentation", "its output, scores per pixel", _classes),
)
"""Tasks by the shapes of outputs, in the order in which they are tried."""
