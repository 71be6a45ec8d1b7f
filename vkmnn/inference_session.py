"""The onnxruntime-shaped face: `InferenceSession(model).run(None, {"x": x})`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from vkmnn.arguments import check_feeds
from vkmnn.budget import Budget
from vkmnn.core.backend import MemoryUse, Tuning
from vkmnn.core.placement import Placement
from vkmnn.core.profile import Profile
from vkmnn.core.session import TUNING_RUNS
from vkmnn.errors import InvalidInputError
from vkmnn.ir import Array, TensorInfo
from vkmnn.opening import CpuInfo, open_model
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.schedule_config import (
    OnDeviceLost,
    Precision,
    PrecisionName,
    ScheduleConfig,
    Unsupported,
)

if TYPE_CHECKING:
    import onnx
    from typing_extensions import Self


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Name, type and shape of an input or output, as onnxruntime's NodeArg has them.

    `type` is ONNX's, "tensor(float)", and `dtype` numpy's name of the elements, "float32". Symbols
    in the shape are strings, unknown sizes None; it is None where not even the rank is known.
    """

    name: str
    type: str
    shape: list[int | str | None] | None
    dtype: str


class InferenceSession:
    """Run an ONNX model on a Vulkan device.

    Args:
        model: a path, serialised bytes, or an onnx.ModelProto.
        device: "auto", an index, part of a name, a UUID, or "cpu"; see `ScheduleConfig`.
        precision: "high", "fp32" (float32) or "normal", "fp16" (float16 storage); see
            `ScheduleConfig`.
        driver: the Vulkan binding.
        validation: run under the Khronos validation layer; its messages become errors.
        require_device: raise PlacementError instead of running an op on the CPU backend.
        progress: called with (done, all) while pipelines are compiled.
        budget: memory, nodes and time that loading and planning the model may take; None takes
            `VKMNN_MAX_BYTES`, `VKMNN_MAX_NODES` and `VKMNN_MAX_SECONDS`, or the defaults.
        on_device_lost: "raise" DeviceLostError, or "rebuild" the session and run once more; see
            `ScheduleConfig`.
        sess_options: onnxruntime's; refused, with a hint, as `providers` and `provider_options`.
        providers: refused; `vkmnn.onnxruntime` takes it.
        provider_options: refused.
        unsupported: "cpu": nodes that have neither a kernel nor a numpy execution run on the host,
            in onnxruntime where it is installed, else in the onnx package's evaluator, and
            `placement` shows them; "raise" refuses the model, as is right for one that is not
            trusted.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        BudgetError: the model takes more than the budget.
        UnsupportedOpError: operators that nothing runs, or, with "raise", that vkmnn does not
            know; all of them are listed.
        DeviceNotFoundError: the device asked for is not there.
    """

    def __init__(
        self,
        model: str | Path | bytes | onnx.ModelProto,
        device: str | int = "auto",
        *,
        precision: PrecisionName = "high",
        driver: str | None = None,
        validation: bool | None = None,
        require_device: bool = False,
        progress: Callable[[int, int], None] | None = None,
        budget: Budget | None = None,
        on_device_lost: OnDeviceLost = "raise",
        sess_options: None = None,
        providers: None = None,
        provider_options: None = None,
        unsupported: Unsupported = "cpu",
    ) -> None:
        _refuse(sess_options=sess_options, providers=providers, provider_options=provider_options)
        config = ScheduleConfig(
            device=device,
            precision=precision,
            driver=driver,
            validation=validation,
            require_device=require_device,
            progress=progress,
            on_device_lost=on_device_lost,
        )
        network, self._session = open_model(model, config, budget, unsupported=unsupported)
        self._types = network.graph.types
        self._inputs = {info.name: info for info in network.graph.inputs}
        self._outputs = [info.name for info in network.graph.outputs]
        self._output_infos = network.outputs
        self._session.plan_ahead()

    @property
    def device(self) -> DeviceInfo | CpuInfo:
        """The device that the session runs on."""
        return self._session.device

    @property
    def precision(self) -> Precision:
        """What the session runs with: "high" where the device has no 16-bit storage."""
        return self._session.precision

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that `run` wants."""
        return [_node_arg(info, self._types) for info in self._inputs.values()]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs that `run` gives."""
        return [_node_arg(info, self._types) for info in self._output_infos]

    def run(
        self, output_names: list[str] | tuple[str, ...] | None, feeds: Mapping[str, Array]
    ) -> list[Array]:
        """Run the network once; new input shapes are planned first, earlier plans are kept.

        Args:
            output_names: which outputs to return; None, or an empty list, for all.
            feeds: one array per input, of the input's dtype and a shape that fits; a list for a
                sequence, None for an empty optional, arrays of objects for strings.

        Raises:
            InvalidInputError: an unknown or missing name, a wrong dtype, shape or value.
            ShapeError: the shapes do not fit the network.
            PlacementError: with `require_device`, an op of the new plan would run off the device.
            HostError: a node on the host cannot be computed.
        """
        arrays = check_feeds(self._inputs, feeds, self._types)
        if isinstance(output_names, str):
            raise InvalidInputError(
                f"output_names is a list of names, not the text '{output_names}'",
                hint=f"write ['{output_names}']",
            )
        wanted = list(output_names or self._outputs)
        for name in wanted:
            if name not in self._outputs:
                raise InvalidInputError(
                    f"the network has no output '{name}'",
                    hint=f"outputs: {', '.join(self._outputs)}",
                )
        results = self._session.core.run(arrays)
        return [results[name] for name in wanted]

    def placement(self) -> Placement:
        """Return where each op of the latest plan runs and why.

        Raises:
            InvalidInputError: nothing is planned yet, because the input shapes are symbolic.
        """
        return self._session.core.placement()

    def profile(self, feeds: Mapping[str, Array], runs: int = 10) -> Profile:
        """Run the network a few times and measure where the time goes; `str()` gives a table.

        The measured plan is one of its own; the plans of `run` stay as they are.

        Args:
            feeds: as for `run`.
            runs: how many runs to measure; the profile holds medians.

        Raises:
            InvalidInputError: as `run`; or `runs` is below 1; or the device cannot measure time.
        """
        return self._session.core.profile(check_feeds(self._inputs, feeds, self._types), runs)

    def tune(
        self,
        feeds: Mapping[str, Array],
        runs: int = TUNING_RUNS,
        progress: Callable[[int, int], None] | None = None,
    ) -> Tuning:
        """Measure the kernels that the network could use at these shapes, and use the fastest.

        Whole runs decide at last: unless they gain, everything stays as it was. What was found is
        kept on disk, per device and driver, and serves other sessions too (`VKMNN_TUNE`). On the
        numpy backend there is nothing to choose.

        Args:
            feeds: as for `run`.
            runs: how often each candidate runs; the least time counts.
            progress: called with (done, all) after every trial; `all` may grow.

        Raises:
            InvalidInputError: as `run`; or `runs` is below 1; or the device cannot measure time.
        """
        return self._session.core.tune(
            check_feeds(self._inputs, feeds, self._types), runs, progress
        )

    def memory(self) -> MemoryUse:
        """Return the device memory of the latest plan; all zeros on the numpy backend.

        Raises:
            InvalidInputError: nothing is planned yet, because the input shapes are symbolic.
        """
        return self._session.core.memory()

    def __repr__(self) -> str:
        """Return what goes in and out, and where it runs."""
        ins, outs = ", ".join(self._inputs), ", ".join(self._outputs)
        return f"<vkmnn.InferenceSession ({ins}) -> ({outs}) on {self.device.name}>"

    def close(self) -> None:
        """Release device memory; the session cannot be used afterwards."""
        self._session.core.close()

    def __enter__(self) -> Self:
        """Return the session itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the session."""
        self.close()


def _refuse(**arguments: object) -> None:
    """Say where onnxruntime's arguments are taken."""
    for name, value in arguments.items():
        if value is not None:
            raise InvalidInputError(
                f"vkmnn.InferenceSession takes no {name}",
                hint='write device="auto" or device=0; or use vkmnn.onnxruntime, which takes '
                "onnxruntime's arguments: import vkmnn.onnxruntime as ort",
            )


def _node_arg(info: TensorInfo, types: Mapping[str, str]) -> NodeArg:
    shape = None if info.shape is None else list(info.shape)
    return NodeArg(info.name, types.get(info.name, info.dtype.onnx), shape, info.dtype.value)
