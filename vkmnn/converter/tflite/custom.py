"""Custom operators, which plug-ins may read, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vkmnn.converter.nodes.registry import Readers

if TYPE_CHECKING:
    from vkmnn.converter.tflite.nodes import LiteOp

CUSTOM_READERS: Readers[LiteOp] = Readers("TFLite's custom")
reads_custom = CUSTOM_READERS.reads
