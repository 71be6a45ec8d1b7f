"""Pipelines: sessions with pre- and postprocessing. `vkmnn.pipeline` opens them."""

from __future__ import annotations

from vkmnn.pipelines.base import PicturePipeline, Pipeline
from vkmnn.pipelines.options import Options
from vkmnn.pipelines.pictures import Picture, read_picture
from vkmnn.pipelines.results.boxes import Box, Boxes
from vkmnn.pipelines.results.images import Images
from vkmnn.pipelines.results.keypoints import Keypoints, Poses
from vkmnn.pipelines.results.labels import Label, Labels
from vkmnn.pipelines.results.maps import Depth, Embedding, Enlarged, Matte
from vkmnn.pipelines.results.masks import Mask, Masks
from vkmnn.pipelines.results.result import Result
from vkmnn.pipelines.results.sounds import Segment, Segments, Transcript
from vkmnn.pipelines.results.speech import Speech
from vkmnn.pipelines.results.text_lines import TextLine, TextLines
from vkmnn.pipelines.results.texts import Written
from vkmnn.pipelines.tasks import TASKS, Task, pipeline, task_of

__all__ = [
    "TASKS",
    "Box",
    "Boxes",
    "Depth",
    "Embedding",
    "Enlarged",
    "Images",
    "Keypoints",
    "Label",
    "Labels",
    "Mask",
    "Masks",
    "Matte",
    "Options",
    "Picture",
    "PicturePipeline",
    "Pipeline",
    "Poses",
    "Result",
    "Segment",
    "Segments",
    "Speech",
    "Task",
    "TextLine",
    "TextLines",
    "Transcript",
    "Written",
    "pipeline",
    "read_picture",
    "task_of",
]
