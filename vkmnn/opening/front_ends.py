"""Models read by the front end that recognises them, after plug-ins are loaded."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vkmnn.base.budget import Meter
from vkmnn.base.threads import Workers
from vkmnn.cpu_fallback import run_op
from vkmnn.discovery import left_out, load_plugins
from vkmnn.errors import ModelError, UnsupportedOpError
from vkmnn.ir import Graph
from vkmnn.opening.network import InputShapes

if TYPE_CHECKING:
    import onnx

    from vkmnn.converter.front_end import FrontEnd
    from vkmnn.converter.onnx import HostCheck


def converted(
    model: Any,
    meter: Meter,
    as_inputs: frozenset[str],
    host: HostCheck | None,
    shapes: InputShapes,
) -> tuple[Graph, bool]:
    """Return the graph of a model, read by the front end that recognises it.

    The second result is True where the graph has been optimised already.
    """
    from vkmnn.converter.front_end import Conversion

    found = front_end_of(model)
    with Workers(1, "vkmnn-read") as workers:
        # The file is read while plug-ins, and with them most of vkmnn, are imported.
        reading = workers.submit(found.read, model) if found else None
        load_plugins()
        source = reading.result() if reading else None
    if found is None:  # unless a plug-in knows what it is, ONNX's reader says what it is not
        found = front_end_of(model) or _usual_front_end()
        source = found.read(model)
    try:
        graph = found.convert(source, Conversion(meter, run_op, as_inputs, host, shapes))
    except UnsupportedOpError as error:
        raise _with_left_out(error) from error.__cause__
    except ModelError as error:
        error.hint = error.hint or "the file is damaged, or not a valid model; export it again"
        raise
    return graph, found.optimised


def front_end_of(model: object) -> FrontEnd | None:
    """Return the front end that recognises a model: vkmnn's own, or a loaded plug-in's."""
    from vkmnn.converter import native  # noqa: F401 - it registers its front end, as others do
    from vkmnn.converter.front_end import find_front_end

    found = find_front_end(model)
    if found is None:  # a file of vkmnn's own needs no converter to be imported
        from vkmnn.converter import front_ends  # noqa: F401

        found = find_front_end(model)
    return found


def unstated_inputs(model: object) -> tuple[str, ...]:
    """Return the inputs whose shapes callers must give, since the model states none."""
    found = front_end_of(model)
    return found.unstated(model) if found else ()


def _usual_front_end() -> FrontEnd:
    from vkmnn.converter.onnx import OnnxFrontEnd

    return OnnxFrontEnd()


def _with_left_out(error: UnsupportedOpError) -> UnsupportedOpError:
    """Name the plug-ins that failed to load: they may have had the operators."""
    names = ", ".join(f"{plugin.name} ({plugin.error.message})" for plugin in left_out())
    if not names:
        return error
    return UnsupportedOpError(error.nodes, hint=f"these plug-ins could not be loaded: {names}")


def host_check(names: Sequence[str]) -> HostCheck:
    """Return the check whether the host can run a node; imported when a model needs it."""

    def check(
        model: onnx.ModelProto, untyped: Collection[str]
    ) -> Mapping[str, onnx.TypeProto] | str:
        from vkmnn.host import check_on_host

        return check_on_host(names)(model, untyped)

    return check
