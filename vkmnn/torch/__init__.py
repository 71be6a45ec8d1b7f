"""PyTorch's modules on Vulkan devices: `vkmnn.torch.compile(module, args)`."""

from __future__ import annotations

from vkmnn.torch.compiled import CompiledModule, compile

__all__ = ["CompiledModule", "compile"]
