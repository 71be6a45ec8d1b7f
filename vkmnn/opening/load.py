"""From a model to an optimised network."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.base.budget import Budget, Meter
from vkmnn.cpu_fallback import run_op
from vkmnn.discovery import load_plugins
from vkmnn.errors import InvalidInputError, typed_memory_errors
from vkmnn.ir import HOST_GRAPH, Graph
from vkmnn.opening.front_ends import converted, host_check
from vkmnn.opening.network import InputShapes, Network, with_sizes
from vkmnn.runtime import environment
from vkmnn.schedule_config import Unsupported, unsupported_name
from vkmnn.sources.locate import model_file

if TYPE_CHECKING:
    from vkmnn.opening.network import Model


_MAX_WHOLE = 1 << 24
"""Maximum bytes of a model that is kept for onnxruntime; files are read again."""


def load_network(
    model: Model,
    budget: Budget | None = None,
    *,
    as_inputs: Collection[str] = (),
    sizes: Mapping[str, int] | None = None,
    shapes: InputShapes | None = None,
    optimised: bool = True,
    unsupported: Unsupported = "cpu",
) -> Network:
    """Load and optimise a model.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto, a Graph, or whatever another front end
            accepts.
        budget: memory, nodes and time that loading and planning may take; None uses
            `VKMNN_MAX_BYTES`, `VKMNN_MAX_NODES` and `VKMNN_MAX_SECONDS`, or the defaults.
        as_inputs: names of initializers with an input of the same name: inputs with a default value
            that the caller wants to feed. Others become constants.
        sizes: sizes of named dimensions, which are fixed before the network is optimised.
        shapes: shapes of inputs in place of the file's: sizes, names, or None for open ones.
        optimised: False runs no pass: every node of the file is an op, or several.
        unsupported: "cpu" lets an ONNX evaluator on the host run nodes that cannot be
            converted, if it can; "raise" refuses the model.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        BudgetError: the model exceeds the budget.
        UnsupportedOpError: the model has operators that nothing can run or, with "raise", that
            vkmnn does not know; all are listed.
        InvalidInputError: `unsupported` is neither.
    """
    model = model_file(model)
    on_host = unsupported_name(unsupported) == "cpu"
    host = host_check(environment.host_engines()) if on_host else None
    with typed_memory_errors("loading the model"):
        meter = Meter(budget or environment.budget())
        finished = False
        shapes = shapes or {}
        if isinstance(model, Graph):
            load_plugins()
            source = model.with_input_shapes(shapes) if shapes else model
            source.validate()  # a front end validates what it makes
        else:
            source, finished = converted(model, meter, frozenset(as_inputs), host, shapes)
        _check_names(source, shapes)
        weights = sum(array.nbytes for array in source.constants.values())
        meter.weigh(weights, len(source.ops) if isinstance(model, Graph) else 0)
        if sizes:
            source = _with_sizes(source, sizes)
            finished = False  # the passes know more now
        again = partial(
            _read_again,
            model,
            _written(model),
            partial(
                load_network,
                *(model, budget),
                as_inputs=as_inputs,
                sizes=sizes,
                optimised=optimised,
                unsupported=unsupported,
            ),
        )
        if finished and not shapes:
            return Network(source, source.copy(), meter, reload=again)
        optimise = partial(_optimised, optimised=optimised, on_host=on_host)
        origin = _origin(model) if on_host and not shapes else None
        made = optimise(source, meter)
        return Network(source, made, meter, optimise=optimise, origin=origin, reload=again)


def network_of(
    graph: Graph, like: Network, *, optimised: bool = True, without: Collection[str] = ()
) -> Network:
    """Return a network of another graph: a part of one that is loaded, or one with other constants.

    Args:
        graph: its source.
        like: the network from which it is derived; the budget is the same.
        optimised: False runs no pass.
        without: names of passes that are left out.

    Raises:
        BudgetError: optimising it exceeds the budget.
        InvalidInputError: there is no pass of a name.
    """
    with typed_memory_errors("optimising the network"):
        meter = like.meter.renewed()
        optimise = partial(_optimised, optimised=optimised, without=without)
        again = partial(_network_again, graph, like, optimised, without)
        made = optimise(graph, meter)
        return Network(graph, made, like.meter, optimise=optimise, reload=again)


def _origin(model: Model) -> str | Path | bytes | None:
    """Return the source to run an ONNX model as a whole; None for large or other models."""
    if isinstance(model, str | Path):
        return model
    if isinstance(model, bytes):
        return model if len(model) <= _MAX_WHOLE else None
    if type(model).__name__ != "ModelProto":
        return None
    proto: Any = model
    size = sum(len(one.raw_data) for one in proto.graph.initializer)
    return bytes(proto.SerializeToString()) if size <= _MAX_WHOLE else None


def _check_names(source: Graph, shapes: InputShapes) -> None:
    names = [info.name for info in source.inputs]
    for name in shapes:
        if name not in names:
            raise InvalidInputError(
                f"the network has no input '{name}'", hint=f"inputs: {', '.join(names)}"
            )


def _with_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Return the graph with named dimensions fixed."""
    return replace(
        graph,
        inputs=[with_sizes(info, sizes) for info in graph.inputs],
        outputs=[with_sizes(info, sizes) for info in graph.outputs],
        infos={name: with_sizes(info, sizes) for name, info in graph.infos.items()},
    )


def _read_again(
    model: Model,
    written: tuple[int, int] | None,
    load: Callable[..., Network],
    shapes: InputShapes,
) -> Network:
    """Load a model once more, with other shapes of inputs."""
    if _written(model) != written:
        raise InvalidInputError(
            f"'{model!s}' has changed since it was loaded: it cannot be read for another shape",
            hint="load it into a new Interpreter",
        )
    return load(shapes=shapes)


def _network_again(
    graph: Graph,
    like: Network,
    optimised: bool,
    without: Collection[str],
    shapes: InputShapes,
) -> Network:
    """Return a network of a graph once more, with other shapes of inputs and its own constants."""
    source = like.with_shapes(shapes).source
    own = {
        name: graph.constants[name]
        for name, array in source.constants.items()
        if name in graph.constants
        and (array.shape, array.dtype) == (graph.constants[name].shape, graph.constants[name].dtype)
    }
    source = replace(source, constants={**source.constants, **own})
    return network_of(source, like, optimised=optimised, without=without)


def _written(model: Model) -> tuple[int, int] | None:
    """Return the size and modification time of a file; None for anything else."""
    if not isinstance(model, str | os.PathLike):
        return None
    try:
        status = Path(model).stat()
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def _optimised(
    source: Graph,
    meter: Meter,
    *,
    optimised: bool,
    on_host: bool = True,
    without: Collection[str] = (),
) -> Graph:
    """Return the graph to run, optimised on request; what the host can fold is folded."""
    if not optimised:
        return source.copy()
    from vkmnn.converter.passes import optimize

    graph = optimize(source, run_op, meter=meter, without=without)
    while on_host and (folded := _folded_on_host(graph)) is not None:
        graph = optimize(folded, run_op, meter=meter, without=without)
    return graph


def _folded_on_host(graph: Graph) -> Graph | None:
    """Return the network without host nodes on constants; None if it has none."""
    known = {"", *graph.constants}
    if not any(op.type == HOST_GRAPH and known.issuperset(op.inputs) for op in graph.ops):
        return None
    from vkmnn.host import fold_on_host

    return fold_on_host(graph, environment.host_engines(), environment.timeout_s())
