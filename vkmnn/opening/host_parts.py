"""Host nodes and the bodies of If, Loop and Scan, opened when a network has them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from functools import partial

from vkmnn.base.budget import Budget, host_memory
from vkmnn.control_flow.branches import Branches
from vkmnn.control_flow.inner_work import WORTH, operations
from vkmnn.control_flow.loops import Axes, Body
from vkmnn.core.host_part import HostPart
from vkmnn.core.program import OpenHost
from vkmnn.errors import ConversionError, ModelError
from vkmnn.ir import Array, Op
from vkmnn.opening.load import load_network
from vkmnn.opening.network import Network
from vkmnn.runtime import environment

_log = logging.getLogger(__name__)


def host_opener(network: Network, engines: Sequence[str]) -> OpenHost:
    """Return what opens a network's host nodes, in these engines and the network's budget."""
    return partial(
        _open_on_host,
        engines=engines,
        seconds=environment.timeout_s(),
        budget=network.meter.budget,
    )


def _open_on_host(
    ops: Sequence[Op],
    constants: Mapping[str, Array],
    wanted: Collection[str],
    engines: Sequence[str],
    seconds: float,
    budget: Budget,
) -> Sequence[HostPart]:
    """Return the runner of host ops; imported only when a network needs it."""
    from vkmnn.host import open_on_host

    room = host_memory() // 2 if budget.bytes is None else budget.bytes
    return open_on_host(ops, constants, wanted, engines, seconds, room)


def open_branches(
    op: Op, constants: Mapping[str, Array], always: bool, budget: Budget, seconds: float
) -> Branches | Body | str:
    """Return the networks inside an If, Loop or Scan; where the host runs it, why, or "".

    The host runs what makes it little work, unless `always` is set.
    """
    from vkmnn.host import body_model, branch_models, carries_objects

    try:
        found = branch_models(op, constants, always)
        if found is not None:
            models, names = found
            graphs = {taken: load_network(model, budget).graph for taken, model in models.items()}
            return Branches(graphs, names)
        body = body_model(op, constants, always)
        if body is None:
            return "it carries a sequence, which only the host holds" if carries_objects(op) else ""
        graph = load_network(body.model, budget).graph
    except (ConversionError, ModelError) as error:
        _log.info("the host runs '%s': %s", op.name, error)
        return f"what is inside does not make a network: {' '.join(error.message.split())}"
    work = WORTH if always else operations(graph)
    if work < WORTH:
        # One submission of an If is worth it for any product; each iteration takes one.
        return f"an iteration takes about {work:,} operations, a submission as long as {WORTH:,}"
    ways = body.ways
    axes = (
        None
        if ways is None
        else Axes(
            tuple(zip(ways.in_axes, ways.in_back, strict=True)),
            tuple(zip(ways.out_axes, ways.out_back, strict=True)),
        )
    )
    return Body(graph, body.given, body.formal, body.outer, axes, body.still, body.sizes, seconds)
