"""The heads of detectors: a table of how to recognise and decode them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from vkmnn.base.records import dataclass
from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.heads import detr, efficientdet, final, nanodet, ssd, yolo, yolo_grids
from vkmnn.pipelines.heads.candidates import Candidates
from vkmnn.pipelines.heads.coco import COCO, COCO_IDS
from vkmnn.pipelines.heads.signature import Signature
from vkmnn.pipelines.image_processor import IMAGENET_MEAN, IMAGENET_STD, ImageProcessor
from vkmnn.pipelines.placing import Fit
from vkmnn.pipelines.resampling import LINEAR

Decode = Callable[[Mapping[str, Array], Signature], Sequence[Candidates]]
"""Returns the candidates of each image of a run."""

_LETTERBOX = ImageProcessor(Fit("letterbox", (640, 640)), LINEAR, fill=(114,))
_YOLOX = ImageProcessor(Fit("corner", (640, 640)), LINEAR, 1.0, channels="bgr", fill=(114,))
_STRETCH = ImageProcessor(Fit("stretch", (640, 640)), "bilinear")
_DARKNET = ImageProcessor(Fit("letterbox", (416, 416)), LINEAR, fill=(128,))
_RAW = ImageProcessor(Fit("stretch", (416, 416)), "bilinear", 1.0)
_IMAGENET = ImageProcessor(
    Fit("stretch", (512, 512)), "bilinear", 1 / 255, IMAGENET_MEAN, IMAGENET_STD
)
_DETR = ImageProcessor(
    Fit("edges", None, 800, 1333), "bilinear", 1 / 255, IMAGENET_MEAN, IMAGENET_STD
)
_ULTRAFACE = ImageProcessor(
    Fit("stretch", (240, 320)), LINEAR, 1 / 128, (127 / 128,) * 3, (1.0,) * 3
)
_NANODET = ImageProcessor(
    Fit("stretch", (320, 320)), LINEAR, 1.0, (103.53, 116.28, 123.675), (57.375, 57.12, 58.395),
    channels="bgr",
)  # fmt: skip
_AS_IT_IS = ImageProcessor(Fit("padded"), "bilinear")
_BYTES = ImageProcessor(Fit("stretch", (320, 320)), "bilinear", 1.0)


@dataclass(frozen=True, slots=True)
class Head:
    """A type of detector head.

    Attributes:
        name: the detector's name.
        matches: returns whether a network's outputs have its form.
        decode: decodes the outputs.
        usual: the default preprocessing, if no file describes one.
        first: index of the first class with a name; 1 if 0 is the background.
        names: default class names if no file has any and their number is unknown.
    """

    name: str
    matches: Callable[[Signature], bool]
    decode: Decode
    usual: ImageProcessor
    first: int = 0
    names: Sequence[str] = COCO


HEADS: Sequence[Head] = (
    Head("TensorFlow's detection", final.is_tensorflow, final.tensorflow, _BYTES, 1, COCO_IDS),
    Head("TFLite's detection", final.is_tflite, final.tflite, _BYTES, 0, COCO_IDS[1:]),
    Head("YOLOv3 with suppression", final.is_yolov3, final.yolov3, _DARKNET),
    Head("YOLO with suppression by plug-in", final.is_counted, final.counted, _LETTERBOX),
    Head("SSD with suppression", final.is_ssd, final.ssd, _IMAGENET, 1),
    Head("RTMO", final.is_rtmo, final.rtmo, _YOLOX, names=("person",)),
    Head("RT-DETR, decoded", detr.is_decoded, detr.decoded, _STRETCH),
    Head(
        "torchvision's detection", final.is_torchvision, final.torchvision, _AS_IT_IS, 1, COCO_IDS
    ),
    Head("RF-DETR", detr.is_rf, detr.logits, _IMAGENET, 0, COCO_IDS),
    Head("DETR", detr.is_logits, detr.logits, _DETR),
    Head("EfficientDet", efficientdet.is_final, efficientdet.final, _IMAGENET, 1, COCO_IDS),
    Head("EfficientDet, raw", efficientdet.is_raw, efficientdet.raw, _IMAGENET),
    Head("YOLO, end to end", yolo.is_end_to_end, yolo.end_to_end, _LETTERBOX),
    Head("YOLOv7, end to end", yolo.is_rows, yolo.rows, _LETTERBOX),
    Head("PaddleDetection", final.is_paddle, final.paddle, _IMAGENET),
    Head("SSD", ssd.is_raw, ssd.raw, _IMAGENET, 1),
    Head("UltraFace", ssd.is_ultraface, ssd.ultraface, _ULTRAFACE, 1, ("background", "face")),
    Head("YOLO, boxes and scores", yolo.is_pair, yolo.pair, _LETTERBOX),
    Head("YOLO grids", yolo_grids.is_grids, yolo_grids.grids, _LETTERBOX),
    Head("YOLOv4 grids", yolo_grids.is_darknet, yolo_grids.darknet, _DARKNET),
    Head("YOLOv2 grid", yolo_grids.is_yolov2, yolo_grids.yolov2, _RAW),
    Head("NanoDet", nanodet.is_nanodet, nanodet.distances, _NANODET),
    Head("YOLOX", yolo.is_yolox, yolo.table, _YOLOX),
    Head("YOLO", yolo.is_table, yolo.table, _LETTERBOX),
)
"""All heads in matching order: specific ones first."""


def head_of(signature: Signature) -> Head | None:
    """Return the head of a network; None if no head matches."""
    return next((head for head in HEADS if head.matches(signature)), None)
