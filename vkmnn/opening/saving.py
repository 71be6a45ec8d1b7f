"""`vkmnn.convert`: a model as a file that opens without converting and optimising it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from vkmnn.arguments import checked_input_shapes, target_path
from vkmnn.base.budget import Budget
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.ir import MAX_PLANNED_SIZES, Graph
from vkmnn.opening.device import open_device
from vkmnn.opening.load import load_network
from vkmnn.opening.network import Network
from vkmnn.opening.session import open_session
from vkmnn.schedule_config import (
    PRECISIONS,
    STORAGE,
    PrecisionName,
    ScheduleConfig,
    Unsupported,
    precision_name,
)

if TYPE_CHECKING:
    from vkmnn.opening.network import Model

SUFFIX = ".vkmnn"


def convert(
    model: Model,
    path: str | Path,
    *,
    precision: PrecisionName = "high",
    external_data: bool = False,
    sizes: Mapping[str, int | Sequence[int]] | None = None,
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    tuned: bool = False,
    packed: bool = False,
    device: str | int = "auto",
    budget: Budget | None = None,
    unsupported: Unsupported = "cpu",
) -> None:
    """Write a model as a `.vkmnn` file, which opens without being optimised again.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto or a Graph.
        path: the file to write, with the suffix ".vkmnn".
        precision: "fp16" rounds weights to float16, which halves the file; sessions compute in
            their own precision.
        external_data: weights go to a second file, PATH.data.
        sizes: sizes of named dimensions. One size is fixed; several leave the dimension open, and
            sessions plan for each of them when they open.
        input_shapes: shapes in place of the file's, as for `InferenceSession`.
        tuned: store the measurements of `tune` on the device "auto" for the shapes that are fixed
            or planned for; sessions on the same device use them.
        packed: also store the weights in the forms that the kernels of `device` read, for the
            shapes that are fixed or planned for, at `precision`. Sessions whose kernels read these
            forms need not pack them; others do.
        device: the device of these forms, as for `InferenceSession`.
        budget: limits of loading the model; see `Budget`.
        unsupported: handling of nodes that vkmnn cannot run: "cpu" leaves them to an ONNX evaluator
            on the host, "raise" refuses the model.

    Raises:
        ModelError: the model is missing, damaged or not a model.
        UnsupportedOpError: operators that nothing runs.
        ConversionError: the file cannot hold something; the node is named.
        InvalidInputError: an argument is not valid, or the file cannot be written.
    """
    from vkmnn.converter.native.write import WriteOptions, write_model

    target = target_path(path, SUFFIX)
    shapes = checked_input_shapes(input_shapes)
    half = STORAGE[PRECISIONS[precision_name(precision)]][0] == "f16"
    if sizes:
        source = load_network(
            model, budget, shapes=shapes, optimised=False, unsupported=unsupported
        ).source
        listed = {
            name: tuple(size) if isinstance(size, Sequence) else (size,)
            for name, size in sizes.items()
        }
        _check_sizes(listed, source)
        fixed = {name: several[0] for name, several in listed.items() if len(several) == 1}
        network = load_network(source, budget, sizes=fixed)
        planned = {name: several for name, several in listed.items() if len(several) > 1}
        network = replace(network, graph=replace(network.graph, planned_sizes=planned))
    else:
        network = load_network(model, budget, shapes=shapes, unsupported=unsupported)
    graph = _with_measured(network) if tuned else network.graph
    if packed:
        graph = _with_packed(graph, target.parent, half, device, budget)
    write_model(graph, target, WriteOptions(half, external_data, "vkmnn"))


def _with_packed(
    graph: Graph, folder: Path, half: bool, device: str | int, budget: Budget | None
) -> Graph:
    """Return the graph with the packed forms for sessions of its file.

    Raises:
        InvalidInputError: no shape is known, or the device packs nothing.
    """
    from vkmnn.converter.native.write import WriteOptions, write_model

    config = ScheduleConfig(device=device, precision="normal" if half else "high")
    with TemporaryDirectory(prefix=".vkmnn-", dir=folder) as place:
        path = Path(place, f"plain{SUFFIX}")
        write_model(replace(graph, packed=()), path, WriteOptions(half))
        network = load_network(path, budget)
    opened_on = open_device(config)
    opened_on.backend.collect_forms()
    opened = open_session(network, config, opened_on, keeps_states=True)
    try:
        opened.plan_ahead()
        if opened.core.current is None:
            raise InvalidInputError(
                "there are no shapes to pack weights for",
                hint="fix the sizes that the model leaves open: --static-shapes N=1",
            )
        forms = opened_on.backend.packed_forms()
    finally:
        opened.core.close()
    if not forms:
        raise InvalidInputError(
            f"{opened_on.info.name} reads all weights of this network as they are",
            hint="leave out --packed",
        )
    return replace(network.graph, packed=forms)


def _with_measured(network: Network) -> Graph:
    """Return the network with measurements of this machine's device.

    Raises:
        InvalidInputError: no shape is known, or nothing was measured.
    """
    graph = network.graph
    found: dict[str, str] = {}
    device = ""
    for precision in ("high", "normal"):
        opened = open_session(network, ScheduleConfig(precision=precision))
        try:
            opened.plan_ahead()
            if opened.core.current is None:
                raise InvalidInputError(
                    "there are no shapes to keep measurements for",
                    hint="fix the sizes that the model leaves open: --static-shapes N=1",
                )
            device, met = opened.core.measured()
            found |= met
        finally:
            opened.core.close()
    if not found:
        raise InvalidInputError(
            "nothing has been measured for this network on this device",
            hint="run `vkmnn tune` on the model first, at the same shapes",
        )
    return replace(graph, tuned={**graph.tuned, device: found})


def _check_sizes(sizes: Mapping[str, Sequence[int]], graph: Graph) -> None:
    """Raise InvalidInputError for a dimension that is not there, or a size that is none."""
    named = {dim for info in graph.inputs for dim in info.shape or () if isinstance(dim, str)}
    for name, several in sizes.items():
        if name not in named:
            raise InvalidInputError(
                f"no input has a dimension '{name}'",
                hint=nearest(name, sorted(named), "dimensions with a name"),
            )
        for size in several or ("missing",):
            if type(size) is not int or size < 0:
                raise InvalidInputError(
                    f"the size of '{name}' is {size!r}",
                    hint="sizes are whole numbers: {'N': 1} or {'N': (1, 8)}",
                )
    count = prod(len(several) for several in sizes.values())
    if count > MAX_PLANNED_SIZES:
        raise InvalidInputError(
            f"the sizes make {count} combinations, {MAX_PLANNED_SIZES} at most can be planned for",
            hint="give fewer sizes",
        )
