"""The backend of torch.compile: `torch.compile(module, backend="vkmnn")`."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Any

from vkmnn.arguments import checked_number
from vkmnn.converter.torch import dynamo, need_torch
from vkmnn.errors import ConversionError, InvalidInputError, nearest
from vkmnn.torch.compiled_graph import CompiledGraph
from vkmnn.torch.graph_sessions import Settings
from vkmnn.torch.graphs import Refusal, read_graph

NAME = "vkmnn"
_GROUP = "torch_dynamo_backends"
_MODES = {
    None: False,
    "default": False,
    "reduce-overhead": False,  # sessions replay recorded commands in any case
    "max-autotune": True,
    "max-autotune-no-cudagraphs": True,
}
"""Modes of torch.compile, and whether kernels are measured before the first run."""

_SESSION = (
    *("device", "precision", "driver", "validation", "require_device", "progress", "budget"),
    *("on_device_lost", "on_overflow", "unsupported"),
)
_MAX_SAID = 256
_said: set[str] = set()


class FallbackWarning(UserWarning):
    """PyTorch runs a graph instead of vkmnn; the message gives the reason."""


def backend(
    graph: Any,
    examples: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph for torch.compile.

    Args:
        graph: the `torch.fx.GraphModule`.
        examples: arguments of the first call.
        mode: of torch.compile; "max-autotune" measures kernels first.
        options: those of `InferenceSession` ("device", "precision", ...); "sessions", how many a
            graph keeps at most (32); "fallback", which is "eager", or "raise" for an error where
            PyTorch would have to run a graph.

    Returns:
        What runs the graph: in a session, or in PyTorch.

    Raises:
        MissingExtraError: `onnxscript` is not installed.
        InvalidInputError: an unknown mode or option.
        ConversionError: PyTorch would have to run the graph, and "fallback" is "raise".
    """
    torch = need_torch(f'torch.compile(backend="{NAME}")')
    settings = _settings(mode, options or {})
    try:
        rewritten, signature = read_graph(torch, graph, examples)
    except Refusal as refusal:
        settings.fall_back(refusal)
        return graph.forward  # type: ignore[no-any-return]
    if not signature.made and not signature.written:  # views: nothing is computed
        return graph.forward  # type: ignore[no-any-return]
    return CompiledGraph(torch, graph, rewritten, signature, settings)


def register() -> None:
    """Make the backend known to torch.compile by its name, if PyTorch is installed.

    Installed packages have an entry point, from which PyTorch learns it when it needs a backend;
    an import of Dynamo would take seconds.
    """
    if "torch._dynamo" not in sys.modules and entry_points(group=_GROUP, name=NAME):
        return
    if (package := dynamo()) is not None:
        with suppress(AssertionError):  # it is known
            package.register_backend(backend, name=NAME)


def _settings(mode: str | None, options: Mapping[str, Any]) -> Settings:
    if mode not in _MODES:
        raise InvalidInputError(
            f"the backend has no mode {mode!r}", hint=f"modes: {', '.join(filter(None, _MODES))}"
        )
    known = (*_SESSION, "sessions", "fallback")
    for name in options:
        if name not in known:
            raise InvalidInputError(
                f"the backend has no option '{name}'", hint=nearest(name, known, "options")
            )
    fallback = options.get("fallback", "eager")
    if fallback not in ("eager", "raise"):
        raise InvalidInputError(
            f"the option 'fallback' is {fallback!r}", hint='it is "eager" or "raise"'
        )
    return Settings(
        session={name: value for name, value in options.items() if name in _SESSION},
        tuned=_MODES[mode],
        sessions=checked_number(options.get("sessions", 32), "the number of sessions", 1),
        fall_back=_raise if fallback == "raise" else _say,
    )


def _raise(refusal: Refusal) -> None:
    raise ConversionError(
        f"PyTorch would have to run a graph of torch.compile's: {refusal.reason}",
        hint=refusal.hint or None,
    ) from refusal


def _say(refusal: Refusal) -> None:
    """Warn that PyTorch runs a graph, once for each reason."""
    text = f"PyTorch runs a graph of torch.compile's, not vkmnn: {refusal.reason}"
    if refusal.hint:
        text += f"\n  hint: {refusal.hint}"
    if text in _said:
        return
    if len(_said) >= _MAX_SAID:
        _said.clear()
    _said.add(text)
    warnings.warn(text, FallbackWarning, stacklevel=2)
