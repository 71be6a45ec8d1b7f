"""`vkmnn.convert`: a model as a file that opens without being converted and optimised again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from vkmnn.budget import Budget
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Graph
from vkmnn.opening import load_network
from vkmnn.schedule_config import PRECISIONS, PrecisionName, Unsupported, precision_name

if TYPE_CHECKING:
    from vkmnn.opening import Model

SUFFIX = ".vkmnn"


def convert(
    model: Model,
    path: str | Path,
    *,
    precision: PrecisionName = "high",
    external_data: bool = False,
    sizes: Mapping[str, int] | None = None,
    budget: Budget | None = None,
    unsupported: Unsupported = "cpu",
) -> None:
    """Write a model as a `.vkmnn` file, which opens without being optimised again.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto or a Graph.
        path: the file to write, with the suffix ".vkmnn".
        precision: "fp16" rounds weights to float16, which halves the file; sessions compute as
            their own precision says.
        external_data: weights go to a second file beside the first, PATH.data.
        sizes: sizes of named dimensions, which are fixed.
        budget: what loading the model may take; see `Budget`.
        unsupported: what becomes of nodes that vkmnn cannot run: "cpu" keeps them for an ONNX
            evaluator on the host, "raise" refuses the model.

    Raises:
        ModelError: the model is missing, damaged or not a model.
        UnsupportedOpError: operators that nothing runs.
        ConversionError: the file cannot hold something; the node is named.
        InvalidInputError: an argument is not valid, or the file cannot be written.
    """
    from vkmnn.converter.native.write import WriteOptions, write_model

    target = Path(path)
    if target.suffix.lower() != SUFFIX:
        raise InvalidInputError(
            f"'{target}' does not end with {SUFFIX}", hint=f"name it {target.stem}{SUFFIX}"
        )
    half = PRECISIONS[precision_name(precision)] != "high"
    if sizes:
        source = load_network(model, budget, optimised=False, unsupported=unsupported).source
        _check_sizes(sizes, source)
        network = load_network(source, budget, sizes=sizes)
    else:
        network = load_network(model, budget, unsupported=unsupported)
    write_model(network.graph, target, WriteOptions(half, external_data, "vkmnn"))


def _check_sizes(sizes: Mapping[str, int], graph: Graph) -> None:
    """Raise InvalidInputError for a dimension that is not there, or a size that is none."""
    named = {dim for info in graph.inputs for dim in info.shape or () if isinstance(dim, str)}
    for name, size in sizes.items():
        if name not in named:
            raise InvalidInputError(
                f"no input has a dimension '{name}'",
                hint=f"dimensions with a name: {', '.join(sorted(named)) or 'none'}",
            )
        if type(size) is not int or size < 0:
            raise InvalidInputError(
                f"the size of '{name}' is {size!r}", hint="sizes are whole numbers: {'N': 1}"
            )
