"""Custom operators, which plug-ins may also read."""

from __future__ import annotations

from typing import Any

from vkmnn.converter.nodes.registry import Readers

CUSTOM_READERS: Readers[Any] = Readers("TFLite's custom")
reads_custom = CUSTOM_READERS.reads
