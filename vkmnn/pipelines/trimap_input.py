"""The trimap of a network for matting: an input of its own, or the fourth channel of the image."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from vkmnn.converter.nodes.model import finish_model
from vkmnn.converter.nodes.scope import FLOAT, FLOAT16, Scope
from vkmnn.inference_session import NodeArg
from vkmnn.opening import load_network
from vkmnn.pipelines.front import put_before
from vkmnn.pipelines.networks import Loaded

_IMAGE, _TRIMAP = "vkmnn.image", "trimap"
_CHANNELS = 4
_NAMES = ("alpha", "matte", "pha")
"""Words in the names of mattes."""


def takes_trimap(loaded: Loaded) -> bool:
    """Return whether a network computes one map from an image and its trimap."""
    return _named(loaded) is not None or _axis(loaded) is not None


def computes_matte(loaded: Loaded) -> bool:
    """Return whether the outputs also tell that a network takes a trimap: one channel, or a name.

    Decoders of latent images have four channels as well.
    """
    (first, *_) = loaded.outputs
    named = any(word in first.name.lower() for word in _NAMES)
    return takes_trimap(loaded) and (named or 1 in (first.shape or ())[1:])


def trimap_input(loaded: Loaded) -> NodeArg:
    """Return the input with the trimap of a network that `split_trimap` returned."""
    found = _named(loaded)
    assert found is not None
    return found


def _named(loaded: Loaded) -> NodeArg | None:
    found = (arg for arg in loaded.inputs if _TRIMAP in arg.name.lower())
    return next((arg for arg in found if 1 in (arg.shape or ())[1:]), None)


def _axis(loaded: Loaded) -> int | None:
    """Return the axis of the four channels of the only input; None if it is no such input."""
    first, shapes = loaded.inputs[0], [list(arg.shape or ()) for arg in loaded.outputs]
    shape = list(first.shape or ())
    floats = first.dtype in ("float32", "float16")
    if len(loaded.inputs) != 1 or len(shape) != 4 or not floats or len(shapes) != 1:
        return None
    if shape[1] == _CHANNELS or (not isinstance(shape[1], int) and _convolved(loaded)):
        axis = 1
    elif shape[3] == _CHANNELS:
        axis = 3
    else:
        return None
    of_map = shapes[0][axis] if len(shapes[0]) == 4 else 1
    return None if isinstance(of_map, int) and of_map != 1 else axis


def _convolved(loaded: Loaded) -> bool:
    """Return whether a convolution takes the input as four channels, whatever its shape says."""
    graph, name = loaded.network.source, loaded.inputs[0].name
    weights = [graph.constants.get(op.inputs[1]) for op in graph.ops
               if op.type == "Convolution" and op.inputs[0] == name]  # fmt: skip
    return any(one is not None and one.shape[1] == _CHANNELS for one in weights)


def split_trimap(loaded: Loaded) -> Loaded:
    """Return a network with the trimap as an input of its own: the image has three channels."""
    axis = _axis(loaded)
    if axis is None:
        return loaded
    (whole,) = loaded.inputs
    scope = Scope("vkmnn.trimap/")
    kind = FLOAT16 if whole.dtype == "float16" else FLOAT
    declared: dict[str, Any] = {}
    for name, channels in ((_IMAGE, _CHANNELS - 1), (_TRIMAP, 1)):
        shape = list(whole.shape or ())
        shape[axis] = channels
        declared[name] = kind, shape
        scope.types[name] = kind
    joined = scope.fresh("joined")
    scope.emit("Concat", list(declared), [joined], joined, kind, axis=axis)
    scope.copy(joined, whole.name)
    scope.types[whole.name] = kind
    before = load_network(
        finish_model(scope, declared, [whole.name], "trimap", "vkmnn"), optimised=False
    ).source
    source = put_before(before, loaded.network.source, whole.name)
    inputs = [replace(whole, name=name, shape=shape) for name, (_, shape) in declared.items()]
    return replace(loaded, network=replace(loaded.network, source=source), inputs=inputs)
