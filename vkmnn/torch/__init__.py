"""PyTorch's modules on Vulkan devices.

`vkmnn.torch.compile(module, args)` compiles a whole module, and `torch.compile(module,
backend="vkmnn")` what PyTorch makes of it while it runs.
"""

from __future__ import annotations

from vkmnn.torch.compiled import CompiledModule, compile
from vkmnn.torch.dynamo import FallbackWarning, backend, register

__all__ = ["CompiledModule", "FallbackWarning", "backend", "compile"]

register()
