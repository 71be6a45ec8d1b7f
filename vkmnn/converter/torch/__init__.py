"""PyTorch's programs: its own exporter writes them as ONNX, whose converter does the rest.

torch is imported with the first model of this kind.
"""

from __future__ import annotations

from vkmnn.converter.torch.exporting import exporting
from vkmnn.converter.torch.front_end import TorchFrontEnd
from vkmnn.converter.torch.packages import dynamo, need_torch
from vkmnn.converter.torch.sources import NEXT, Program, Script

__all__ = ["NEXT", "Program", "Script", "TorchFrontEnd", "dynamo", "exporting", "need_torch"]
