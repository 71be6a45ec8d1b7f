"""The page of `vkmnn info --html`: the network as a graph, from nodes to kernels."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from string import Template
from typing import Any

from vkmnn.cli import pages
from vkmnn.cli.console import bytes_text, shape_text, time_text
from vkmnn.core.placement import Placement
from vkmnn.core.profile import Profile
from vkmnn.errors import plural
from vkmnn.ir import Graph, HostGraphAttrs, Op, TensorInfo
from vkmnn.opening import Network

_CHUNK = 50
"""Ops per scope, for large networks whose names have no scopes."""

_MANY = 400
_LONGEST = 160

_BODY = Template("""$tiles
<section class="card">
<div class="tools">
<button type="button" id="closer">Zoom in</button>
<button type="button" id="wider">Zoom out</button>
<button type="button" id="fit">Fit</button>
<button type="button" id="all">Open all</button>
<button type="button" id="few">Close all</button>
<label>colour <select id="paint"><option value="op">by operator</option>
$paints</select></label>
<input type="search" id="search" placeholder="op, node or kernel, then Enter" aria-label="Search">
<span class="soft" id="found"></span>
</div>
<div class="graph">
<svg id="graph" role="img" aria-label="The network's ops and the tensors between them">
<g id="view"></g></svg>
<aside id="detail"><p class="soft">Click a box: a scope opens, an op is described here. Drag to
move, turn the wheel to zoom.</p></aside>
</div>
<div class="legend">$legend</div>
</section>
<section class="card" id="ops"><h2>Ops of the optimised network</h2>
<div class="scroll rows">$table</div></section>
<script type="application/json" id="network">$network</script>""")


@dataclass(slots=True)
class Drawn:
    """A network with the information that its page shows.

    Attributes:
        network: the network, original and optimised.
        infos: known shapes of tensors.
        placement: where ops run and why; None without a plan.
        profile: measured times; None if not measured.
    """

    network: Network
    infos: Mapping[str, TensorInfo] = field(default_factory=dict)
    placement: Placement | None = None
    profile: Profile | None = None


def graph_page(drawn: Drawn, title: str, subtitle: str) -> str:
    """Return the page.

    Args:
        drawn: the network.
        title: the name of the model.
        subtitle: where it runs, and on which inputs.
    """
    graph = drawn.network.graph
    ops = _described(drawn)
    types = [name for name, _ in Counter(op["type"] for op in ops).most_common()]
    colours = pages.colours_of([name for name in types if name not in ("input", "output")])
    places = sorted({op["where"] for op in ops if op.get("where")})
    whole = {
        "ops": ops,
        "edges": _edges(graph, ops, drawn.infos),
        "colours": colours,
        "places": {name: f"var(--c{2 * number % 8})" for number, name in enumerate(places)},
    }
    paints = ['<option value="time">by time</option>'] if drawn.profile else []
    paints += ['<option value="where">by where it runs</option>'] if places else []
    body = _BODY.substitute(
        tiles=pages.tiles(_facts(drawn)),
        paints="".join(paints),
        legend=pages.legend([name for name in types if name not in ("input", "output")], colours),
        table=_table(ops),
        network=json.dumps(whole, separators=(",", ":")).replace("<", "\\u003c"),
    )
    return pages.page("info", title, subtitle, body, script="graph_page.js")


def _facts(drawn: Drawn) -> list[tuple[str, str]]:
    source, graph = drawn.network.source, drawn.network.graph
    weights = sum(array.nbytes for array in graph.constants.values())
    facts = [
        (str(len({op.source or op.name for op in source.ops})), "nodes of the model"),
        (str(len(graph.ops)), "ops after the passes"),
        (bytes_text(weights), "weights"),
    ]
    if drawn.placement is not None:
        away = drawn.placement.off_device
        facts.append((str(len(away)), f"{plural(len(away), 'op').split()[1]} off the device"))
    if drawn.profile is not None:
        facts.append((time_text(drawn.profile.wall_us / 1e6), "a run (median)"))
    return facts


def _described(drawn: Drawn) -> list[dict[str, Any]]:
    """Return the page's data on each op, and on inputs and outputs."""
    graph, infos = drawn.network.graph, drawn.infos
    known = {op.source or op.name for op in drawn.network.source.ops}
    found = [_end("input", info.name, infos.get(info.name, info)) for info in graph.inputs]
    measured, placed = _measured(drawn.profile, graph), _placed(drawn.placement, graph)
    scoped = _scopes(graph, known)
    given = {info.name for info in graph.inputs} | graph.producers().keys()
    found += [
        {
            "type": _kind(op),
            "name": op.name,
            "nodes": _nodes(op, known),
            "path": scoped[op.name],
            "reads": [_tensor(name, infos) for name in op.inputs if name in given],
            "weights": [_weight(name, graph) for name in op.inputs if name in graph.constants],
            "makes": [_tensor(name, infos) for name in op.outputs if name],
            "attrs": _attributes(op),
            **placed.get(op.name, {}),
            **measured.get(op.name, {}),
        }
        for op in graph.ops
    ]
    found += [_end("output", info.name, infos.get(info.name, info)) for info in graph.outputs]
    return found


def _kind(op: Op) -> str:
    return op.attrs.kind if isinstance(op.attrs, HostGraphAttrs) else op.type


def _end(kind: str, name: str, info: TensorInfo) -> dict[str, Any]:
    about = [_tensor(name, {name: info})]
    return {"type": kind, "name": name, "nodes": [], "path": [], "makes": about}


def _nodes(op: Op, known: set[str]) -> list[str]:
    whole = op.source or op.name
    return [whole] if whole in known else whole.split(" + ")


def _scopes(graph: Graph, known: set[str]) -> dict[str, list[str]]:
    """Return the scope of each op, by the slashes in the name of its first node."""
    found = {}
    for op in graph.ops:
        name = re.sub(r" \([^()]*\)$", "", _nodes(op, known)[0])
        found[op.name] = [part[:60] for part in name.split("/")[:-1] if part]
    if len(graph.ops) > _MANY and not any(found.values()):
        for number, op in enumerate(graph.ops):
            first = number - number % _CHUNK
            last = min(first + _CHUNK, len(graph.ops))
            found[op.name] = [f"ops {first + 1} to {last}"]
    return found


def _placed(placement: Placement | None, graph: Graph) -> dict[str, dict[str, Any]]:
    """Return placement and reason of ops; ops that the plan split are matched by their source."""
    names = {op.name for op in graph.ops}
    by_source = {op.source: op.name for op in graph.ops if op.source}
    found: dict[str, dict[str, Any]] = {}
    for one in placement or ():
        name = one.name if one.name in names else by_source.get(one.source)
        if name is not None:
            reason = "; ".join(filter(None, (one.reason, *one.passed_over)))
            before = found.setdefault(name, {"where": one.backend, "why": reason})
            before["why"] = before["why"] or reason
    return found


def _measured(profile: Profile | None, graph: Graph) -> dict[str, dict[str, Any]]:
    """Return kernels and microseconds of ops."""
    names = {op.name for op in graph.ops}
    by_source = {op.source: op.name for op in graph.ops if op.source}
    found: dict[str, dict[str, Any]] = {}
    for entry in profile or ():
        name = entry.name if entry.name in names else by_source.get(entry.source)
        if name is not None:
            row = found.setdefault(name, {"kernels": [], "us": 0.0})
            row["kernels"].append(f"{entry.kernel}: {entry.microseconds:.1f} µs")
            row["us"] = round(row["us"] + entry.microseconds, 3)
    return found


def _tensor(name: str, infos: Mapping[str, TensorInfo]) -> str:
    info = infos.get(name)
    return name if info is None else f"{name}: {info.dtype.value} {shape_text(info.shape)}"


def _weight(name: str, graph: Graph) -> str:
    array = graph.constants[name]
    return f"{name}: {array.dtype} {shape_text(array.shape)}, {bytes_text(array.nbytes)}"


def _attributes(op: Op) -> list[str]:
    """Return the attributes with short values."""
    values = ((one.name, getattr(op.attrs, one.name)) for one in fields(op.attrs))
    texts = (f"{name} = {value!r}" for name, value in values if value not in (None, (), ""))
    return [text for text in texts if len(text) <= _LONGEST]


def _edges(
    graph: Graph, ops: list[dict[str, Any]], infos: Mapping[str, TensorInfo]
) -> list[tuple[int, int, str]]:
    """Return the tensors between ops: producer, consumer and description."""
    first = len(graph.inputs)
    made = {info.name: number for number, info in enumerate(graph.inputs)}
    made |= {name: first + at for at, op in enumerate(graph.ops) for name in op.outputs if name}
    found = [
        (made[name], first + at, _tensor(name, infos))
        for at, op in enumerate(graph.ops)
        for name in dict.fromkeys(op.inputs)
        if name in made
    ]
    after = first + len(graph.ops)
    found += [
        (made[info.name], after + at, _tensor(info.name, infos))
        for at, info in enumerate(graph.outputs)
        if info.name in made
    ]
    return found


def _table(ops: Iterable[Mapping[str, Any]]) -> str:
    names = ("#", "op", "name", "nodes of the model", "kernels", "µs", "runs on", "because")
    rows = []
    for number, op in enumerate(ops):
        if op["type"] in ("input", "output"):
            continue
        us = op.get("us")
        rows.append(
            [
                pages.Cell(str(number), number),
                op["type"],
                op["name"],
                " + ".join(op["nodes"]),
                ", ".join(text.rpartition(":")[0] for text in op.get("kernels", ())),
                pages.Cell("", -1) if us is None else pages.Cell(f"{us:,.1f}", us),
                op.get("where", ""),
                op.get("why", ""),
            ]
        )
    return pages.table(names, rows, {0, 5})
