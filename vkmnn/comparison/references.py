"""Reference engines for comparisons: onnxruntime, numpy node by node, or another device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vkmnn.base.budget import Meter
from vkmnn.base.records import dataclass
from vkmnn.core.backends import named_backend
from vkmnn.discovery import load_plugins
from vkmnn.errors import HostError, InvalidInputError, MissingExtraError, VkmnnError
from vkmnn.opening import (
    CPU_DEVICE,
    Network,
    front_end_of,
    load_network,
    open_session,
    unstated_inputs,
)
from vkmnn.runtime import environment
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.selection import select
from vkmnn.schedule_config import ScheduleConfig, Unsupported

if TYPE_CHECKING:
    import onnx

ONNXRUNTIME = "onnxruntime"
_ONNXRUNTIME = frozenset({ONNXRUNTIME, "ort"})
_FOLDER = "session.model_external_initializers_file_folder_path"
_MAX_PROTO = (1 << 31) - 1

Values = Callable[[Mapping[str, Any], Sequence[str]], Mapping[str, Any]]
"""Computes the named tensors from inputs; unknown ones are omitted."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A reference engine: its name, and a function that computes tensors."""

    name: str
    values: Values


def is_onnxruntime(name: str) -> bool:
    """Return whether a name means onnxruntime."""
    return name.lower() in _ONNXRUNTIME


def check_reference(name: str, model: object) -> None:
    """Refuse a reference that cannot compute the model, before the model runs.

    Args:
        name: "onnxruntime", "cpu" or a device.
        model: the model.

    Raises:
        DeviceNotFoundError: the device does not exist.
        MissingExtraError: onnxruntime is not installed.
        InvalidInputError: the model cannot be converted to ONNX.
    """
    if not is_onnxruntime(name):
        if name not in ("auto", "fastest", CPU_DEVICE):
            load_plugins()
            if named_backend(name) is None:
                select(enumerate_devices(None), name)
        return
    if importlib.util.find_spec("onnxruntime") is None:
        raise MissingExtraError(
            "comparing with onnxruntime: onnxruntime is not installed",
            hint="pip install onnxruntime; or compare with numpy: cpu",
        )
    from vkmnn.converter.native import NativeFrontEnd

    if isinstance(front_end_of(model), NativeFrontEnd):
        shown = Path(model).name if isinstance(model, str | Path) else "the model"
        raise InvalidInputError(
            f"onnxruntime does not read '{shown}', and vkmnn's own files keep no ONNX nodes",
            hint="give the original model, or compare with numpy: cpu",
        )


def reference_for(
    name: str, model: Any, network: Network, unsupported: Unsupported = "cpu"
) -> Reference:
    """Return the reference engine of a name.

    "cpu" runs the model's nodes without fusion, in numpy; another device runs the optimised network
    in float32.

    Raises:
        VkmnnError: as `check_reference`, and as models are opened.
    """
    check_reference(name, model)
    if is_onnxruntime(name):
        return onnxruntime_of(model)
    if name == CPU_DEVICE:
        unstated = unstated_inputs(model)
        shapes = {
            info.name: info.shape
            for info in network.source.inputs
            if info.name in unstated and info.shape is not None
        }
        plain = load_network(model, shapes=shapes, optimised=False, unsupported=unsupported)
        return Reference("numpy, node by node", values_of(plain, ScheduleConfig(device=name)))
    config = ScheduleConfig(device=name)
    opened = open_session(network, config)
    shown = opened.device.name
    opened.core.close()
    return Reference(shown, values_of(network, config))


def onnxruntime_of(model: Any) -> Reference:
    """Return onnxruntime with a model; raises as `onnx_of`."""
    return Reference("onnxruntime (CPU)", _Onnxruntime(*onnx_of(model)).values)


def values_of(network: Network, config: ScheduleConfig) -> Values:
    """Return a function that runs a network with additional tensors as outputs."""
    from dataclasses import replace

    def values(feeds: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
        known = network.graph.producers()
        outputs = {info.name for info in network.outputs}
        saved = tuple(name for name in names if name in known and name not in outputs)
        opened = open_session(network, replace(config, save_tensors=saved))
        try:
            results = opened.core.run(feeds)
        finally:
            opened.core.close()
        return {name: results[name] for name in names if name in results}

    return values


def onnx_of(model: Any) -> tuple[onnx.ModelProto, Path | None]:
    """Return a model as ONNX, and the folder of its external data.

    Other formats are converted to ONNX nodes by their front end.

    Raises:
        InvalidInputError: the front end does not create ONNX nodes.
        ModelError: the model cannot be read.
    """
    from vkmnn.converter.front_end import Conversion
    from vkmnn.converter.onnx import OnnxFrontEnd
    from vkmnn.converter.onnx.external import completed
    from vkmnn.converter.onnx.model_file import read_model
    from vkmnn.cpu_fallback import run_op

    front = front_end_of(model)
    if isinstance(front, OnnxFrontEnd | None):
        file = read_model(model)
        return completed(file), file.folder
    made: list[Any] = []
    budget = environment.budget()
    conversion = Conversion(Meter(budget), run_op, told=made.append)
    try:
        front.convert(front.read(model), conversion)
    except VkmnnError:
        if not made:  # later stages may fail and are not needed
            raise
    if not made:
        raise InvalidInputError(
            "the model cannot be converted to ONNX for onnxruntime", hint="compare with numpy: cpu"
        )
    return completed(made[-1]), made[-1].folder


class _Onnxruntime:
    """A model in onnxruntime, with additional tensors as outputs."""

    def __init__(self, proto: onnx.ModelProto, folder: Path | None) -> None:
        self._proto = proto
        self._folder = folder
        self._known = {name for node in proto.graph.node for name in node.output if name}

    def values(self, feeds: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
        """Compute tensors.

        Raises:
            HostError: onnxruntime cannot read or run the model.
        """
        import onnx

        from vkmnn.host.exact_codes import lacks_zero_points
        from vkmnn.host.genuine import genuine_onnxruntime
        from vkmnn.host.sessions import session_options

        outputs = [info.name for info in self._proto.graph.output]
        wanted = [name for name in names if name in self._known or name in outputs]
        added = [name for name in wanted if name not in outputs]
        proto = onnx.ModelProto()
        proto.CopyFrom(self._proto)
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in added)
        try:
            options = session_options(exact_sums=not lacks_zero_points(proto))
            if self._folder is not None:
                options.add_session_config_entry(_FOLDER, str(self._folder))
            if proto.ByteSize() > _MAX_PROTO:
                raise ValueError("its nodes and weights have more than 2 GiB")
            session = genuine_onnxruntime().InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            taken = {one.name for one in session.get_inputs()}
            given = {name: value for name, value in feeds.items() if name in taken}
            results = session.run(wanted, given)
        except Exception as error:  # onnxruntime's own errors have no common base class
            raise HostError(
                f"onnxruntime cannot run the model: {str(error)[:500]}",
                hint="compare with numpy: cpu",
            ) from error
        return dict(zip(wanted, results, strict=True))
