"""`vkmnn info --html` and `--onnx`: the optimised network as a page, or as a file for viewers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from vkmnn.base.whole_files import check_writable
from vkmnn.cli import pages
from vkmnn.cli.console import note, out, shape_text, waiting
from vkmnn.cli.feeds import Sizes, settle, shapes_to_open
from vkmnn.cli.graph_page import Drawn, graph_page
from vkmnn.cli.run import RunOptions, session_feeds, tell_assumed
from vkmnn.cli.saving import saving
from vkmnn.core.resolve import content_inputs, resolve
from vkmnn.core.stages import cut
from vkmnn.cpu_fallback import run_op
from vkmnn.errors import VkmnnError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import HOST_GRAPH, Graph, TensorInfo
from vkmnn.opening import load_network

_RUNS = 3
_PAGE = ("page cannot be written", "--html")
_ONNX = ("file cannot be written", "--onnx")


def check_targets(html: Path | None, onnx: Path | None) -> None:
    """Refuse output files that cannot be written, before any work.

    Raises:
        InvalidInputError: one cannot be written.
    """
    for path, told in ((html, _PAGE), (onnx, _ONNX)):
        if path is not None:
            with saving(*told, path):
                check_writable(path)


def write_page(model: Path, options: RunOptions, html: Path, profiled: bool) -> None:
    """Write the page of a network with its placement, and with times if it is profiled.

    Args:
        model: the model's file.
        options: the device and inputs of the run, real or hypothetical.
        html: the page to write.
        profiled: whether to run and measure it.
    """
    shapes = shapes_to_open(model, options.shapes, options.inputs)
    network = load_network(model, shapes=shapes)
    with InferenceSession(
        model, options.device, precision=options.precision, input_shapes=shapes
    ) as session:
        fed = session_feeds(session, options)
        tell_assumed(fed.notes)
        inputs = ", ".join(f"{name} {shape_text(x.shape)}" for name, x in fed.arrays.items())
        profile = placement = None
        try:
            session.prepare([fed.arrays])
            if profiled:
                with waiting(f"measuring {model.name}"):
                    profile = session.profile(fed.arrays, _RUNS)
            placement = session.placement()
        except VkmnnError as error:
            if profiled:
                raise
            note(f"where ops run is not shown: {error.message}")
        device = session.device.name
    fitted = {name: array.shape for name, array in fed.arrays.items()}
    drawn = Drawn(network, shapes_of(network.graph, fitted), placement, profile)
    text = graph_page(drawn, model.name, f"on {device}; inputs {inputs}")
    with saving(*_PAGE, html):
        pages.write(text, html)
    out.print(Text(f"saved {html}; open it in a browser"))


def export_network(graph: Graph, path: Path, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write an optimised graph for viewers such as Netron."""
    from vkmnn.converter.onnx.export import write_onnx

    with saving(*_ONNX, path):
        write_onnx(graph, path, shapes_of(graph, shapes))
    out.print(Text(f"saved {path}; open it in a viewer such as Netron"))


def shapes_of(graph: Graph, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, TensorInfo]:
    """Return the tensors of a graph with their known shapes."""
    from dataclasses import replace

    known = {info.name: info for info in (*graph.inputs, *graph.outputs)} | dict(graph.infos)
    given, *_ = settle({info.name: info.shape for info in graph.inputs}, Sizes(dict(shapes)))
    hosted = len(cut(graph)) > 1 or any(op.type == HOST_GRAPH for op in graph.ops)
    if hosted or content_inputs(graph) or any(info.name not in given for info in graph.inputs):
        return known
    infos = {info.name: replace(info, shape=given[info.name]) for info in graph.inputs}
    try:
        return known | dict(resolve(graph, infos, {}, run_op).infos)
    except VkmnnError:  # running the network reports the mismatch
        return known
