"""IOBinding: inputs and outputs bound to memory that the program owns."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.core.device_tensor import DeviceTensor
from vkmnn.errors import VkmnnError
from vkmnn.ir import Array
from vkmnn.onnxruntime.values import OrtValue, as_dtype, check_device

if TYPE_CHECKING:
    from typing import Protocol

    class Runner(Protocol):
        """The interface of a session that a binding uses."""

        @property
        def _input_names(self) -> Sequence[str]: ...

        @property
        def _output_names(self) -> Sequence[str]: ...

        def _run(
            self, feed: Mapping[str, Any], on_device: Collection[str] = ()
        ) -> dict[str, Any]: ...


class IOBinding:
    """Inputs and outputs of a session, bound to arrays in host memory, or to the Vulkan device.

    Outputs that are bound to the device "vulkan" stay there, and need not pass through the host to
    be bound as inputs. Memory of other devices is refused, as onnxruntime's package for the CPU
    refuses it.
    """

    def __init__(self, session: Runner) -> None:
        self._session = session
        self._inputs: dict[str, OrtValue] = {}
        self._outputs: dict[str, OrtValue | None] = {}
        self._on_device: set[str] = set()
        self._results: dict[str, OrtValue] = {}

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Bind an input to an array."""
        self.bind_ortvalue_input(name, OrtValue.ortvalue_from_numpy(arr_on_cpu))

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory by its address; the program keeps it alive."""
        check_device(device_type)
        self.bind_ortvalue_input(name, OrtValue(_over(buffer_ptr, element_type, shape)))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to a value, whose data is read when the session runs."""
        self._check_name(name, self._session._input_names)
        self._inputs[name] = ortvalue

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output; with `buffer_ptr` it is written to that address."""
        check_device(device_type)
        if buffer_ptr is None:
            self._outputs[name] = None
            self._on_device.discard(name)
            if device_type.lower() == "vulkan":
                self._on_device.add(name)
            return
        if element_type is None or shape is None:
            raise ValueError(
                "`element_type` and `shape` are to be provided if pre-allocated memory is provided"
            )
        self._outputs[name] = OrtValue(_over(buffer_ptr, element_type, shape))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for an output, which is written into the value."""
        self._outputs[name] = ortvalue
        self._on_device.discard(name)
        if ortvalue.device_name() == "vulkan":
            self._on_device.add(name)

    def run(self) -> None:
        """Run the session on the bound values.

        Raises:
            RuntimeError: onnxruntime's way to report any failure of such a run.
        """
        if not self._outputs:
            raise RuntimeError("Error in execution: At least one output should be requested.")
        for name in self._outputs:
            self._check_name(name, self._session._output_names)
        try:
            results = self._session._run(self._inputs, self._on_device)
        except (ValueError, VkmnnError) as error:
            raise RuntimeError(f"Error in execution: {error}") from error
        self._results = {
            name: _written(name, results[name], into) for name, into in self._outputs.items()
        }

    def get_outputs(self) -> list[OrtValue]:
        """Return the results in the order in which they were bound."""
        return list(self._results.values())

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the results as arrays."""
        return [value.numpy().copy() for value in self._results.values()]

    def synchronize_inputs(self) -> None:
        """Do nothing: inputs are read when the session runs."""

    def synchronize_outputs(self) -> None:
        """Do nothing: results are in place when a run ends."""

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs and results."""
        self._outputs.clear()
        self._on_device.clear()
        self._results.clear()

    @staticmethod
    def _check_name(name: str, known: Sequence[str]) -> None:
        if name not in known:
            raise RuntimeError(
                f"Failed to find NodeArg with name: {name} in the def list: {', '.join(known)}"
            )


def _over(address: int, element_type: Any, shape: Sequence[int]) -> Array:
    """Return an array over memory with another owner."""
    dtype = as_dtype(element_type)
    sizes = tuple(int(size) for size in shape)
    nbytes = prod(sizes) * dtype.itemsize
    if not nbytes:
        return np.zeros(sizes, dtype)
    memory = memoryview((ctypes.c_byte * nbytes).from_address(int(address)))
    array: Array = np.frombuffer(memory.cast("B"), dtype).reshape(sizes)
    return array


def _written(name: str, result: Array | DeviceTensor, into: OrtValue | None) -> OrtValue:
    if into is None:
        return OrtValue(result)
    if into.shape() != list(result.shape) or into.dtype != result.dtype:
        raise RuntimeError(
            f"Error in execution: The output OrtValue provided for output '{name}' has shape "
            f"{into.shape()} of {into.dtype} but the computed output is "
            f"{list(result.shape)} of {result.dtype}"
        )
    into._take(result)
    return into
