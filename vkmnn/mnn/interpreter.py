"""MNN's Interpreter and Session, with MNN's names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.arguments import checked_sizes, named_tensor
from vkmnn.core.pipelines import Pipelines
from vkmnn.core.session import Session as CoreSession
from vkmnn.core.watched import OpCall
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.ir import Array, DType
from vkmnn.mnn.codes import ErrorCode, UnplannedError, answered
from vkmnn.mnn.config import CPU_TYPE, VULKAN_TYPE, Runtime, ignored, schedule
from vkmnn.mnn.tensor import Tensor, shape_of
from vkmnn.opening import Network, load_network
from vkmnn.opening.reshaped import Openings
from vkmnn.opening.saving import convert
from vkmnn.runtime.device_info import DeviceInfo

RESIZE_DIRECT, RESIZE_DEFER = 6, 7
_SILENT_MODES = {0, 1, 2, 4, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17}


class Session:
    """A configured way to run a network; created by `Interpreter.createSession`."""

    def __init__(self, network: Network, openings: Openings, threads: int = 1) -> None:
        self._openings = openings
        self._threads = threads
        graph = self._core.graph
        self._infos = {info.name: info for info in graph.inputs}
        known = {info.name: info for info in network.outputs}
        self._inputs = {
            name: Tensor._of_session(self, name, info.dtype, shape_of(info.shape))
            for name, info in self._infos.items()
        }
        self._outputs = {
            info.name: Tensor._of_session(
                self, info.name, info.dtype, shape_of(known.get(info.name, info).shape)
            )
            for info in graph.outputs
        }
        self._planned = False

    @property
    def _core(self) -> CoreSession | Pipelines:
        return self._openings.current.core

    def _is_sized(self) -> bool:
        return all(size >= 0 for tensor in self._inputs.values() for size in tensor._shape)

    def _resize(self) -> None:
        shapes = {name: tensor._shape for name, tensor in self._inputs.items()}
        self._openings.fit(shapes)
        feeds = {n: t._array for n, t in self._inputs.items() if t._array is not None}
        known = self._core.resize(shapes, feeds)
        for name, output in self._outputs.items():
            output._array = None
            if name in known:  # other shapes depend on fed contents
                output._shape = known[name].dims
        self._planned = True

    def _refuse_unplanned(self) -> None:
        if not self._planned:
            raise UnplannedError(
                "the session has not been planned for the shapes of its inputs",
                hint="call resizeSession first",
            )

    def _run(self) -> None:
        self._refuse_unplanned()
        self._keep(self._core.run(self._feeds()))

    def _feeds(self) -> dict[str, Array]:
        return {name: tensor._data() for name, tensor in self._inputs.items()}

    def _keep(self, results: Mapping[str, Array]) -> None:
        for name, output in self._outputs.items():
            output._array = results.get(name)
            if output._array is not None:
                output._shape = output._array.shape

    def _run_watched(
        self,
        begin: Callable[[OpCall, list[Tensor]], bool],
        end: Callable[[OpCall, list[Tensor]], bool],
    ) -> int:
        """Run op by op; return NO_ERROR, or CALL_BACK_STOP."""
        stopped = False

        def before(call: OpCall, values: Mapping[str, Array]) -> bool:
            return bool(begin(call, _tensors(values)))

        def after(call: OpCall, values: Mapping[str, Array]) -> bool:
            nonlocal stopped
            stopped = not end(call, _tensors(values))
            return not stopped

        try:
            self._refuse_unplanned()
            self._keep(self._core.run_watched(self._feeds(), before, after))
        except VkmnnError as error:
            return answered(error)
        return ErrorCode.CALL_BACK_STOP if stopped else ErrorCode.NO_ERROR

    def cache(self) -> None:
        """Do nothing: sessions of one network share all they can."""

    def removeCache(self) -> None:
        """Do nothing: see `cache`."""


_OUR_NUMBER = re.compile(r"#\d+$")  # of the second and later ops that one of a file becomes


def _name(call: OpCall) -> str:
    """Return the name of an op in the file."""
    return _OUR_NUMBER.sub("", call.name)


class OpInfo:
    """Description of an op for callbacks."""

    def __init__(self, call: OpCall) -> None:
        self._call = call

    def getName(self) -> str:
        """Return the op's name in the file."""
        return _name(self._call)

    def getType(self) -> str:
        """Return the op's type."""
        return self._call.type

    def getFlops(self) -> float:
        """Return the op's floating-point operations, in millions."""
        return self._call.flops / 1e6


class Interpreter:
    """A loaded network.

    Args:
        model_path: the path of a model: `.mnn`, ONNX or `.vkmnn`.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        UnsupportedOpError: it holds operators that vkmnn does not know.
    """

    def __init__(self, model_path: str | Path) -> None:
        self._network = load_network(model_path)
        self._direct = True

    @staticmethod
    def createRuntime(configs: Sequence[Mapping[str, Any]]) -> tuple[Runtime, tuple[bool, ...]]:
        """Return a runtime for `createSession`, and whether each backend exists.

        Args:
            configs: a sequence of configurations; sessions run with the first.

        Raises:
            InvalidInputError: not a sequence of configurations, or one with an unknown setting.
        """
        given: object = configs
        if not isinstance(given, list | tuple) or not given:
            raise InvalidInputError(
                "createRuntime needs a sequence of configurations",
                hint="write MNN.Interpreter.createRuntime((config,))",
            )
        made = [schedule(config) for config in configs]
        return Runtime(made[0]), (True,) * len(made)

    def createSession(
        self, config: Mapping[str, Any] | None = None, runtime: Any = None
    ) -> Session:
        """Return a new session, planned if the model fixes every shape except the batch.

        Raises:
            InvalidInputError: the configuration holds an unknown key or value.
            DeviceNotFoundError: the device does not exist.
        """
        own = schedule(config)
        if runtime is not None:
            if not isinstance(runtime, Runtime):
                raise InvalidInputError("the runtime must come from createRuntime")
            saved = own.save_tensors or runtime.config.save_tensors
            own = replace(runtime.config, save_tensors=saved, path=own.path)
        session = Session(self._network, Openings(self._network, [own]), own.threads)
        if self._direct and session._is_sized() and not session._core.content_inputs:
            session._resize()
        return session

    def getSessionInput(self, session: Session, name: str | None = None) -> Tensor:
        """Return an input by name, or the first."""
        return named_tensor(session._inputs, name, "input")

    def getSessionInputAll(self, session: Session) -> dict[str, Tensor]:
        """Return all inputs by name."""
        return dict(session._inputs)

    def getSessionOutput(self, session: Session, name: str | None = None) -> Tensor:
        """Return an output by name, or the first."""
        return named_tensor(session._outputs, name, "output")

    def getSessionOutputAll(self, session: Session) -> dict[str, Tensor]:
        """Return all outputs by name."""
        return dict(session._outputs)

    def resizeTensor(self, tensor: Tensor, shape: Sequence[int]) -> None:
        """Give an input of a session a new shape, which `resizeSession` applies.

        Any sizes and any rank that the operators allow are accepted, whatever the file says.

        Raises:
            InvalidInputError: not an input of a session, or a negative size.
        """
        session = tensor._session
        if session is None or tensor._name not in session._inputs:
            raise InvalidInputError("only inputs of sessions can be resized")
        sizes = checked_sizes(shape, f"the shape of '{tensor._name}'")
        if sizes != tensor._shape:
            tensor._shape, tensor._array, session._planned = sizes, None, False

    def resizeSession(self, session: Session) -> bool:
        """Plan the session for the current input shapes; plans for other shapes are kept.

        Raises:
            InvalidInputError: an input has no shape yet.
            ShapeError: the shapes do not fit the network.
        """
        for tensor in session._inputs.values():
            if any(size < 0 for size in tensor._shape):
                raise InvalidInputError(
                    f"input '{tensor._name}' has no fixed shape: {tensor._shape}",
                    hint="call resizeTensor for it first",
                )
        session._resize()
        return True

    def runSession(self, session: Session) -> int:
        """Run on the data of the inputs.

        Returns:
            0, MNN's NO_ERROR: what goes wrong is raised, or a code after `return_error_codes`.

        Raises:
            InvalidInputError: not resized, or an input without data.
            VkmnnError: as `vkmnn.InferenceSession.run`.
        """
        try:
            session._run()
        except VkmnnError as error:
            return answered(error)
        return ErrorCode.NO_ERROR

    def runSessionWithCallBack(
        self,
        session: Session,
        begin: Callable[..., bool],
        end: Callable[..., bool],
        sync: bool = True,
    ) -> int:
        """Run op by op; `begin(inputs, name)` precedes each op, `end(outputs, name)` follows it.

        If `begin` returns False, the op is skipped and its results are zeros; if `end` does, the
        run stops. Tensors are lists of `Tensor`. Callbacks receive results, so nothing remains to
        wait for at the end, whatever `sync` says.

        Returns:
            0, or 11, MNN's CALL_BACK_STOP.

        Raises:
            InvalidInputError: as `runSession`; or an op that only the host runs was skipped.
        """
        return session._run_watched(
            lambda call, inputs: begin(inputs, _name(call)),
            lambda call, made: end(made, _name(call)),
        )

    def runSessionWithCallBackInfo(
        self,
        session: Session,
        begin: Callable[..., bool],
        end: Callable[..., bool],
        sync: bool = True,
    ) -> int:
        """Run as `runSessionWithCallBack`; callbacks get an `OpInfo` instead of the name."""
        return session._run_watched(
            lambda call, inputs: begin(inputs, OpInfo(call)),
            lambda call, made: end(made, OpInfo(call)),
        )

    def getSessionInfo(self, session: Session, code: int) -> float | int:
        """Return 0: MiB on the device, 1: millions of operations, 2: the backend, 3: readiness.

        The backend is 7 for Vulkan, 0 for the CPU. Readiness is 0, or 2 where `resizeSession` has
        to be called. 4 is the number of threads.

        Raises:
            InvalidInputError: another code, or no plan yet.
        """
        if code == 2:
            return (
                VULKAN_TYPE
                if isinstance(session._openings.current.devices[0], DeviceInfo)
                else CPU_TYPE
            )
        if code == 3:
            return 0 if session._planned else 2
        if code == 4:
            return session._threads
        if code == 0:
            use = session._core.memory()
            return (use.activations + use.constants + use.io) / 2**20
        if code != 1 or not session._core.plans:
            raise InvalidInputError(
                f"there is no information {code} about a session",
                hint="codes are 0 to 4; 0 and 1 need resizeSession first",
            )
        return session._core.flops() / 1e6

    def updateSessionToModel(self, session: Session, path: str | Path | None = None) -> None:
        """Write the whole network to a file of vkmnn's format; without a path, do nothing.

        Sessions of this class cannot change constants, so there is nothing to copy.

        Raises:
            InvalidInputError: the session must be resized first.
            OSError: the file cannot be written.
        """
        session._refuse_unplanned()
        if path is not None:
            convert(self._network.graph, path)

    def setCacheFile(self, path: str) -> None:
        """Do nothing: vkmnn keeps its caches in its own folder."""

    def updateCacheFile(self, session: Session, flag: int = 0) -> int:
        """Do nothing: see `setCacheFile`."""
        return 0

    def setExternalFile(self, path: str) -> None:
        """Do nothing, with a warning: an ONNX model names its external data itself."""
        ignored("setExternalFile: an ONNX model names its external data itself")

    def setSessionMode(self, mode: int) -> None:
        """Set whether `createSession` plans (6) or leaves it to `resizeSession` (7).

        3 and 5, memory of the caller, are ignored with a warning, the others without.
        """
        if mode in (RESIZE_DIRECT, RESIZE_DEFER):
            self._direct = mode == RESIZE_DIRECT
        elif mode not in _SILENT_MODES:
            ignored(f"session mode {mode}")

    def setSessionHint(self, mode: int, value: int) -> None:
        """Do nothing: hints are about MNN's own kernels."""

    def getModelVersion(self) -> str:
        """Return the version that the model file states."""
        return str(self._network.source.metadata.version)

    def cache(self) -> None:
        """Do nothing: the caches apply to the process."""

    def removeCache(self) -> None:
        """Do nothing: see `cache`."""


def _tensors(values: Mapping[str, Array]) -> list[Tensor]:
    """Return copies of arrays for callbacks, of tensors only."""
    made = []
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            tensor = Tensor._of_session(None, name, DType.from_numpy(value.dtype), value.shape)
            tensor._array = value
            made.append(tensor)
    return made
