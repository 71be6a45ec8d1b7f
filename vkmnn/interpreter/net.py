"""A loaded network and its sessions."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from vkmnn.arguments import checked_sizes, named_tensor
from vkmnn.base.budget import Budget
from vkmnn.base.closing import Closing
from vkmnn.core.futures import RunFuture
from vkmnn.core.watched import Callback
from vkmnn.errors import InvalidInputError
from vkmnn.interpreter.info import SessionInfo, SessionStatus
from vkmnn.interpreter.modes import PlanTime, SessionModes
from vkmnn.interpreter.session import Session
from vkmnn.interpreter.tensor import SessionConstant, SessionTensor
from vkmnn.ir import Graph
from vkmnn.opening import Network, load_network, network_of
from vkmnn.schedule_config import ScheduleConfig, Unsupported

if TYPE_CHECKING:
    from vkmnn.opening.network import UserModel

Config = ScheduleConfig | Mapping[str, Any]


class Interpreter(Closing):
    """A loaded, optimised network (MNN Interpreter); many sessions may run it at once.

    Args:
        model: a path, serialised bytes, an onnx.ModelProto, a program of PyTorch's, or a Graph.
        budget: memory, nodes and time that loading and planning may take; None uses
            `VKMNN_MAX_BYTES`, `VKMNN_MAX_NODES` and `VKMNN_MAX_SECONDS`, or the defaults.
        unsupported: "cpu" or "raise"; as for `InferenceSession`.

    Raises:
        ModelError: the file is missing, damaged or not a model.
        BudgetError: the model exceeds the budget.
        UnsupportedOpError: the model holds operators that nothing runs, or, with "raise", that
            vkmnn does not know; all are listed.
    """

    def __init__(
        self,
        model: UserModel | Graph,
        budget: Budget | None = None,
        unsupported: Unsupported = "cpu",
    ) -> None:
        self._network: Network | None = load_network(model, budget, unsupported=unsupported)
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._lock = threading.Lock()  # of the set: sessions may be created on any thread

    @classmethod
    def from_file(
        cls, path: str | Path, budget: Budget | None = None, unsupported: Unsupported = "cpu"
    ) -> Interpreter:
        """Load a model file; arguments and errors as for the class."""
        return cls(path, budget, unsupported)

    @classmethod
    def from_buffer(
        cls,
        data: bytes | bytearray | memoryview | mmap,
        budget: Budget | None = None,
        unsupported: Unsupported = "cpu",
    ) -> Interpreter:
        """Load a serialised model from any object with a buffer; see the class."""
        return cls(_bytes(data), budget, unsupported)

    @classmethod
    def from_model(
        cls,
        model: UserModel,
        budget: Budget | None = None,
        unsupported: Unsupported = "cpu",
    ) -> Interpreter:
        """Load a model that is not a Graph; see the class."""
        return cls(model, budget, unsupported)

    def create_session(
        self,
        config: Config | Sequence[Config] | None = None,
        modes: SessionModes | None = None,
    ) -> Session:
        """Create a session, planned at once if the model fixes every shape.

        Several configurations create a session of several parts, which run in order, each on its
        own device (MNN createMultiPathSession): each names its part by `ScheduleConfig.path`, and
        reads the results of the parts before it.

        Args:
            config: how it runs; a dictionary in MNN's form is read by
                `ScheduleConfig.from_mapping`.
            modes: how it behaves; by default that of `SessionModes`.

        Raises:
            DeviceNotFoundError: the requested device does not exist.
            PlacementError: `require_device` is set and an op would run elsewhere.
            InvalidInputError: the configuration holds an unknown value, a path names nothing of
                the network, or the model has been released.
        """
        modes = modes or SessionModes()
        session = Session(self._network_for(modes), _configs(config), modes)
        try:
            if modes.plan is PlanTime.DIRECT:
                session.plan_ahead()
        except BaseException:
            session.close()
            raise
        with self._lock:
            self._sessions.add(session)
        return session

    def _network_for(self, modes: SessionModes) -> Network:
        """Return the network, with the passes that a session's modes allow."""
        network = self._loaded()
        if modes.passes and not modes.without_passes:
            return network
        return network_of(
            network.source, network, optimised=modes.passes, without=modes.without_passes
        )

    def _loaded(self) -> Network:
        if self._network is None:
            raise InvalidInputError(
                "the interpreter has released its model", hint="load it into a new Interpreter"
            )
        return self._network

    @property
    def graph(self) -> Graph:
        """The optimised network.

        Raises:
            InvalidInputError: the model has been released.
        """
        return self._loaded().graph

    @property
    def sessions(self) -> tuple[Session, ...]:
        """The open sessions that are still referenced."""
        with self._lock:
            return tuple(session for session in self._sessions if not session.closed)

    def session_info(self, session: Session) -> SessionInfo:
        """Return memory, operations, backends and state of a session (MNN getSessionInfo).

        Raises:
            InvalidInputError: it has no plan yet, or has been closed.
        """
        return session.info()

    def release_session(self, session: Session) -> None:
        """Close a session (MNN releaseSession).

        Raises:
            InvalidInputError: it is not one of this interpreter's.
        """
        with self._lock:
            if session not in self._sessions:
                raise InvalidInputError(
                    "the session is not one of this interpreter's",
                    hint="it may already have been released",
                )
            self._sessions.discard(session)
        session.close()

    def release_model(self) -> None:
        """Free the network (MNN releaseModel); sessions continue at the shapes that have plans.

        Calls that need the network are refused from then on: new sessions, other shapes, callbacks.
        """
        self._network = None
        for session in self.sessions:
            session.release_model()

    def get_session_constant(self, session: Session, name: str) -> SessionConstant:
        """Return a session's constant of the network, by its name in the model.

        `copy_from` replaces its data, for this session alone; `resize_session` uploads them.

        Raises:
            InvalidInputError: the constant does not exist, or the model has been released.
        """
        return session.constant(name)

    @property
    def trainable(self) -> frozenset[str]:
        """The constants that training changes (MNN's TrainableParam), by name.

        Raises:
            InvalidInputError: the model has been released.
        """
        return self._loaded().source.trainable

    def update_session_to_model(self, session: Session) -> None:
        """Write a session's constants into the network (MNN updateSessionToModel).

        For a model for training, as a `.mnn` file may be, these are its TrainableParams; for
        others, the constants that are not. New sessions use them; `vkmnn.convert(interpreter.graph,
        path)` saves them.

        Raises:
            InvalidInputError: the model has been released, the session must be resized first, or
                it is not one of this interpreter's.
        """
        self._loaded()
        if session not in self.sessions:
            raise InvalidInputError("the session is not one of this interpreter's, or is closed")
        if session.state is SessionStatus.NEEDS_RESIZE:
            raise InvalidInputError(
                "the session has new data that needs a resize",
                hint="call resize_session first",
            )
        self._network = session.with_changes(self._loaded())

    def close(self) -> None:
        """Close all sessions and free the network."""
        for session in self.sessions:
            self.release_session(session)
        self._network = None

    def __reduce__(self) -> NoReturn:
        """Refuse copies: sessions and device memory have one owner."""
        raise TypeError("an Interpreter cannot be copied or pickled: load the model again")

    def get_session_input(self, session: Session, name: str | None = None) -> SessionTensor:
        """Return an input by name, or the first."""
        return named_tensor(session.inputs, name, "input")

    def get_session_output(self, session: Session, name: str | None = None) -> SessionTensor:
        """Return an output by name, or the first."""
        return named_tensor(session.outputs, name, "output")

    def resize_tensor(self, session: Session, tensor: SessionTensor, shape: Sequence[int]) -> None:
        """Set the shape of an input, which `resize_session` applies.

        It may be of any sizes and rank that the operators allow, whatever the model declares: if
        that excludes it, `resize_session` reads the model again.

        Raises:
            InvalidInputError: the tensor is not an input of this session, or a size is negative.
        """
        if session.inputs.get(tensor.name) is not tensor:
            raise InvalidInputError(
                f"tensor '{tensor.name}' is not an input of this session",
                hint="get it with get_session_input(session)",
            )
        sizes = checked_sizes(shape, f"the shape of '{tensor.name}'")
        if tensor.shape != sizes:
            tensor.shape = sizes
            tensor.array = None
            session.resized = False

    def resize_session(self, session: Session) -> None:
        """Plan the session for the current input shapes; earlier plans are kept.

        Raises:
            InvalidInputError: an input has no shape yet, the session keeps its first shapes
                (`Shapes.FIX`), or it would need the model, which has been released.
            ShapeError: the shapes do not fit the network.
        """
        session.resize()

    def run_session(self, session: Session, sync: bool = True) -> None:
        """Run on the data of the session's inputs; outputs are then ready to be copied.

        Args:
            session: the session.
            sync: False starts the run and returns at once, as `submit` does.

        Raises:
            InvalidInputError: the session was not resized, or an input has no data.
        """
        if sync:
            session.run_inputs()
        else:
            session.submit()

    def submit(self, session: Session) -> RunFuture[None]:
        """Start a run and return at once; see `Session.submit`."""
        return session.submit()

    def sync(self, session: Session) -> None:
        """Wait for a session's submitted runs, and raise their errors."""
        session.sync()

    def run_session_with_callback(
        self, session: Session, before: Callback, after: Callback, sync: bool = True
    ) -> None:
        """Run op by op, with a call before and after each (MNN runSessionWithCallBackInfo).

        For inspecting intermediate tensors, and for locating a faulty op. Every op is planned and
        submitted separately, so this takes much longer than `run_session`.

        Args:
            session: the session.
            before: called with an `OpCall` and the op's inputs by name. It returns a `Decision`:
                GO_ON (also True and None), SKIP (also False; the op's results are zeros), or STOP.
            after: called with an `OpCall` and the op's results by name; GO_ON or STOP (also False).
            sync: False starts the run and returns at once: the callbacks are called in another
                thread, where they may not wait for the session. `sync` waits for the end.

        Raises:
            InvalidInputError: as `run_session`; an op that only the host runs was skipped; the
                session was made without `SessionModes.debug`, or its model has been released.
        """
        if not session.modes.debug:
            raise InvalidInputError(
                "the session was created without callbacks", hint="use SessionModes(debug=True)"
            )
        _ = session.network  # ops are planned one by one
        if sync:
            session.run_watched(before, after)
        else:
            session.submit_watched(before, after)


def _bytes(data: object) -> bytes:
    if isinstance(data, bytes):
        return data
    try:
        return memoryview(data).tobytes()  # type: ignore[arg-type]
    except TypeError as error:
        raise InvalidInputError(
            f"a {type(data).__name__} is not a buffer",
            hint="pass bytes, a bytearray, a memoryview or an mmap; from_file takes a path",
        ) from error


def _configs(config: Config | Sequence[Config] | None) -> list[ScheduleConfig]:
    one_alone = config is None or isinstance(config, ScheduleConfig | Mapping)
    several: Any = (config or {},) if one_alone else config
    given = list(several)
    if not given:
        raise InvalidInputError("a session needs a configuration", hint="pass ScheduleConfig()")
    return [
        one if isinstance(one, ScheduleConfig) else ScheduleConfig.from_mapping(one)
        for one in given
    ]
