"""Inputs, outputs and constants of a session."""

from __future__ import annotations

import weakref
from dataclasses import replace
from typing import Any

import numpy as np

from vkmnn.arguments import fed_array, order_hint
from vkmnn.core.device_tensor import DeviceTensor, as_array
from vkmnn.errors import InvalidInputError
from vkmnn.interpreter.modes import Owner
from vkmnn.ir import Array, TensorInfo


class SessionTensor:
    """An input, output or constant of a session: a shape to change and data to copy in or out."""

    def __init__(
        self,
        info: TensorInfo,
        shape: tuple[int, ...] | None,
        is_output: bool = False,
        owner: Owner = Owner.SESSION,
    ) -> None:
        self.info = info
        self.is_output = is_output
        self.owner = owner
        self._mapped: Array | None = None
        self._target: Array | DeviceTensor | None = None
        self._session: weakref.ref[Any] | None = None
        self.shape = shape
        self.array: Array | DeviceTensor | None = None

    @property
    def name(self) -> str:
        """The tensor's name in the model."""
        return self.info.name

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The element type."""
        return self.info.dtype.numpy

    @property
    def session(self) -> Any:
        """The `Session` that the tensor is of.

        Raises:
            InvalidInputError: the session is gone.
        """
        found = self._session() if self._session is not None else None
        if found is None:
            raise InvalidInputError(f"the session of tensor '{self.name}' is gone")
        return found

    def belong_to(self, session: Any) -> None:
        """Set the owner of the tensor."""
        self._session = weakref.ref(session)

    def copy_from(self, array: Array | DeviceTensor) -> None:
        """Set the data of an input (MNN copyFromHostTensor).

        A DeviceTensor is not copied: runs read its content at that time. Neither is an array if
        inputs are the user's memory (`SessionModes.inputs`).

        Raises:
            InvalidInputError: shape or dtype differ from the tensor's, or it is an output.
        """
        if self.is_output:
            raise InvalidInputError(f"tensor '{self.name}' is an output, which runs write")
        array = fed_array(replace(self.info, shape=None), array)
        if self.shape != array.shape:
            present = replace(self.info, shape=self.shape or self.info.shape)
            raise InvalidInputError(
                f"input '{self.name}' has shape {self.shape}, got an array of shape {array.shape}",
                hint=order_hint(present, array.shape)
                or "call Interpreter.resize_tensor and resize_session first",
            )
        if self.owner is Owner.SESSION and isinstance(array, np.ndarray):
            array = np.array(array, order="C")
        self.array = array

    def write_to(self, target: Array | DeviceTensor | None) -> None:
        """Let runs write this output into an array or device tensor; None ends that.

        Raises:
            InvalidInputError: it is not an output, or the session's outputs are its own memory.
        """
        if not self.is_output or self.owner is not Owner.USER:
            raise InvalidInputError(
                f"tensor '{self.name}' is not an output in memory of the caller",
                hint="make the session with SessionModes(outputs=Owner.USER)",
            )
        self._target = target

    def take(self, result: Array | None) -> None:
        """Store the result of a run; None if the run failed before it.

        Raises:
            InvalidInputError: the caller's memory has another shape or dtype, or there is none.
        """
        self.array = result
        if result is None:
            return
        self.shape = getattr(result, "shape", None)  # may depend on fed contents
        if self.owner is not Owner.USER:
            return
        target = self._target
        if target is None or target.shape != result.shape or target.dtype != result.dtype:
            have = f"{target.dtype} {list(target.shape)}" if target is not None else "none"
            raise InvalidInputError(
                f"output '{self.name}' is {result.dtype} {list(result.shape)}, the memory for it "
                f"{have}",
                hint="pass an array of this shape and type to write_to",
            )
        if isinstance(target, DeviceTensor):
            target.copy_from(result)
        else:
            np.copyto(target, result)
        self.array = target

    def map(self) -> Array:
        """Return the data as an array to read, and to write for an input (MNN map).

        Writes apply to the runs after `unmap`. An input without data starts with zeros.

        Raises:
            InvalidInputError: the shape of an input is not known yet, or an output holds no data.
        """
        if self._mapped is None:
            self._mapped = self._host_data()
        return self._mapped

    def _host_data(self) -> Array:
        if self.array is None and not self.is_output:
            if self.shape is None:
                raise InvalidInputError(
                    f"input '{self.name}' has no shape yet",
                    hint="call Interpreter.resize_tensor first",
                )
            return np.zeros(self.shape, self.dtype)
        return np.array(self.copy_to())

    def unmap(self) -> None:
        """End `map`; an input takes the written values (MNN unmap).

        Raises:
            InvalidInputError: the tensor is not mapped.
        """
        if self._mapped is None:
            raise InvalidInputError(f"tensor '{self.name}' is not mapped", hint="call map first")
        array, self._mapped = self._mapped, None
        if not self.is_output:
            self.copy_from(array)

    def copy_to(self) -> Array:
        """Return the data of an output after a run (MNN copyToHostTensor).

        Waits for runs that were submitted.

        Raises:
            InvalidInputError: the session has not run since it was resized.
            VkmnnError: the error of a submitted run.
        """
        owner = self._session() if self.is_output and self._session is not None else None
        if owner is not None:
            owner.sync()
        if self.array is None:
            raise InvalidInputError(
                f"tensor '{self.name}' holds no data yet", hint="call Interpreter.run_session first"
            )
        array: Array = as_array(self.array)
        return array


class SessionConstant(SessionTensor):
    """A constant of the network in one session; resizing keeps new data."""

    def copy_from(self, array: Array | DeviceTensor) -> None:
        """Replace the constant's data; resizing the session uploads them.

        Raises:
            InvalidInputError: the shape or dtype differs, or it is not of floats.
        """
        if self.dtype.kind != "f":
            raise InvalidInputError(
                f"constant '{self.name}' is {self.info.dtype.value}: only floats can be changed",
                hint="shapes and indices may follow from integers",
            )
        host: Array = np.array(as_array(array), order="C")
        if host.shape != self.shape or host.dtype != self.dtype:
            raise InvalidInputError(
                f"constant '{self.name}' is {self.dtype} {self.shape}, got {host.dtype} "
                f"{host.shape}"
            )
        self.array = host
        self.session.change_constant(self.name, host)
