"""Comparison of a model on two engines, one group of tensors at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.arguments import check_feeds
from vkmnn.comparison.references import Reference, check_reference, reference_for, values_of
from vkmnn.comparison.rows import Comparison, TensorRow, compared
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Graph, Op
from vkmnn.opening import Network, load_network, open_session, unstated_inputs
from vkmnn.schedule_config import (
    PRECISIONS,
    PrecisionName,
    ScheduleConfig,
    Unsupported,
    precision_name,
)
from vkmnn.sources.locate import model_file

if TYPE_CHECKING:
    from vkmnn.opening.network import Model

GROUP_BYTES = 256 << 20
GROUP_TENSORS = 256
"""Maximum tensors per group; each group needs a separate plan and run."""

Report = Callable[[int, int], None]


def compare(
    model: Model,
    feeds: Mapping[str, Any],
    against: str = "onnxruntime",
    device: str | int = "auto",
    *,
    precision: PrecisionName = "high",
    tolerance: float | None = None,
    layers: bool = True,
    unsupported: Unsupported = "cpu",
    progress: Report | None = None,
) -> Comparison:
    """Compare a model's tensors with another engine's, and find the first that differs.

    Args:
        model: as for `InferenceSession`.
        feeds: one array per input, by name.
        against: "onnxruntime" on the CPU; "cpu", the model's nodes without fusion, in numpy; or a
            device, the same network in float32.
        device: where the model runs; see `ScheduleConfig`.
        precision: the precision of that run.
        tolerance: the largest allowed difference, as a fraction of the range of a tensor's values;
            None: 1e-4, with float16 1e-2.
        layers: False compares only the outputs.
        unsupported: "cpu" or "raise", as for `InferenceSession`.
        progress: called with the number of compared tensors, and the total.

    Raises:
        InvalidInputError: an argument is not valid, or the model cannot be converted to ONNX.
        MissingExtraError: onnxruntime is not installed.
        HostError: onnxruntime cannot run the model.
        VkmnnError: as `InferenceSession`.
    """
    name = precision_name(precision)
    allowed = usual_tolerance(name) if tolerance is None else tolerance
    model = model_file(model)
    check_reference(against, model)
    unstated = {name: np.shape(feeds[name]) for name in unstated_inputs(model) if name in feeds}
    network = load_network(model, shapes=unstated, unsupported=unsupported)
    graph = network.graph
    checked = check_feeds({info.name: info for info in graph.inputs}, feeds, graph.types)
    config = ScheduleConfig(device=device, precision=name)
    opened = open_session(network, config)
    shown = opened.device.name
    opened.core.close()
    reference = reference_for(against, model, network, unsupported)
    rows = _rows(network, layers)
    made = _compared(rows, network, config, reference, checked, allowed, progress)
    return Comparison(tuple(made), shown, reference.name, allowed)


def usual_tolerance(precision: PrecisionName) -> float:
    """Return the default tolerance, as a fraction of a tensor's range."""
    return 1e-4 if PRECISIONS[precision] in ("high", "fast") else 1e-2


def _rows(network: Network, layers: bool) -> list[TensorRow]:
    """Return a row for each tensor, in the order of the model's nodes."""
    outputs = {info.name for info in network.outputs}
    kept = network.graph.producers()
    into = fused_into(network.source, network.graph)
    rows = []
    for op in network.source.ops:
        for name in filter(None, op.outputs):
            if not layers and name not in outputs:
                continue
            row = TensorRow(name, op.source or op.name, output=name in outputs)
            if name not in kept:
                row = _not_compared(row, op, into, network.graph)
            rows.append(row)
    if not rows:
        raise InvalidInputError("the network has no op", hint="its outputs are its inputs")
    return rows


def _not_compared(row: TensorRow, op: Op, into: Mapping[str, Op], graph: Graph) -> TensorRow:
    """Return the row of a tensor that the optimised network lacks, with the reason."""
    from dataclasses import replace

    fused = into.get(op.source or op.name)
    if fused is not None:
        return replace(row, status="fused", into=f"{fused.type} '{fused.name}'")
    return replace(row, status="constant" if row.name in graph.constants else "removed")


def fused_into(source: Graph, graph: Graph) -> dict[str, Op]:
    """Return the ops of an optimised network by the model's nodes that they came from."""
    found: dict[str, Op] = {}
    known = {op.source or op.name for op in source.ops}
    for op in graph.ops:
        whole = op.source or op.name
        for node in [whole] if whole in known else whole.split(" + "):
            found.setdefault(node, op)
    return found


def _compared(
    rows: Sequence[TensorRow],
    network: Network,
    config: ScheduleConfig,
    reference: Reference,
    feeds: Mapping[str, Any],
    allowed: float,
    progress: Report | None,
) -> Iterator[TensorRow]:
    from dataclasses import replace

    here = values_of(network, config)
    names = [row.name for row in rows if row.status == "same"]
    have: Mapping[str, Any] = {}
    want: Mapping[str, Any] = {}
    groups = _groups(names, network.graph, feeds)
    left = iter(groups)
    done = 0
    for row in rows:
        if row.status == "same":
            if row.name not in have and row.name not in want:
                group = next(left)
                have, want = here(feeds, group), reference.values(feeds, group)
            if row.name not in want or row.name not in have:
                row = replace(row, status="missing")
            else:
                row = compared(row, have[row.name], want[row.name], allowed)
            done += 1
            if progress is not None:
                progress(done, len(names))
        yield row


def _groups(names: Sequence[str], graph: Graph, feeds: Mapping[str, Any]) -> list[list[str]]:
    """Return tensors in groups of limited total size."""
    usual = max((getattr(value, "nbytes", 0) for value in feeds.values()), default=0) * 4
    groups: list[list[str]] = [[]]
    held = 0
    for name in names:
        info = graph.infos.get(name)
        nbytes = prod(info.dims) * 4 if info is not None and info.is_static else usual
        if groups[-1] and (held + nbytes > GROUP_BYTES or len(groups[-1]) >= GROUP_TENSORS):
            groups.append([])
            held = 0
        groups[-1].append(name)
        held += nbytes
    return groups
