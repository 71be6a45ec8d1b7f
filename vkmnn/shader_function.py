"""`vkmnn.shader`: a template as a function of numpy arrays, for experiments."""

from __future__ import annotations

import functools
import math
import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from operator import index
from pathlib import Path
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from vkmnn.codegen import CompiledSource, compile_source
from vkmnn.codegen.declare import ELEMENTS, Element
from vkmnn.errors import InvalidInputError, ShaderError, plural
from vkmnn.runtime import environment
from vkmnn.runtime.device import Device, open_device
from vkmnn.runtime.device_info import DeviceInfo
from vkmnn.runtime.memory import Buffer, BufferRange, MemoryKind
from vkmnn.runtime.pipeline import Pipeline
from vkmnn.runtime.recorder import linear_groups
from vkmnn.shaders import shader_from_entry

Array = NDArray[Any]
Shape = int | Sequence[int]
Number = int | float | bool

_RESERVED = frozenset({"shape", "groups"})
_CODES = {"uint": "I", "int": "i", "float": "f"}
_TEXELS = {kind.texel: kind for kind in ELEMENTS.values() if kind.texel and not kind.decode}
_DTYPES = {
    "float": "float32",
    "vec": "float32",
    "float16_t": "float16",
    "f16vec": "float16",
    "int": "int32",
    "ivec": "int32",
    "uint": "uint32",
    "uvec": "uint32",
    "int16_t": "int16",
    "i16vec": "int16",
    "uint16_t": "uint16",
    "u16vec": "uint16",
    "int8_t": "int8",
    "i8vec": "int8",
    "uint8_t": "uint8",
    "u8vec": "uint8",
    "int64_t": "int64",
    "double": "float64",
    "bfloat16_t": "uint16",
}
"""Scalar or vector type of GLSL -> numpy's dtype; numpy has no bfloat16: its bits are passed."""


class _Tensor(NamedTuple):
    name: str
    access: str
    kind: Element

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(_DTYPES[re.sub(r"(?<=vec)\d$", "", self.kind.stored)])

    def bytes(self, size: int) -> int:
        """Bytes of `size` numbers: whole elements, and whole words for the fill."""
        unit = max(self.kind.size, 4)
        return -(-size * self.dtype.itemsize // unit) * unit


class ShaderFunction:
    """A compiled template that is called with numpy arrays; created by `vkmnn.shader`.

    Every call allocates, runs, and frees its memory; only the pipeline is kept. Threads may call it
    at the same time.

    Attributes:
        glsl: the rendered text.
        spirv: the module.
        manifest: its entry of manifest.json: bindings, specialization constants, local size, ...
        last_gpu_ms: device milliseconds of the latest call, without copies; None before the first
            call and without timestamps.
    """

    def __init__(
        self,
        compiled: CompiledSource,
        device: str | int = "auto",
        *,
        driver: str | None = None,
        validation: bool | None = None,
    ) -> None:
        self.name = compiled.name
        self.glsl = compiled.glsl
        self.spirv = compiled.spirv
        self.manifest = compiled.entry
        self.last_gpu_ms: float | None = None
        self._params = compiled.params
        if any(b["type"] == "image" for b in compiled.entry["bindings"]):
            raise ShaderError(
                f"shader {compiled.name} binds images, which numpy arrays cannot fill",
                hint='declare its tensors with load="buffer" or load="texel", or dispatch it '
                "through vkmnn.runtime",
            )
        self._tensors = [
            _Tensor(b["name"], b["access"], _TEXELS.get(b["format"]) or ELEMENTS[b["format"]])
            for b in compiled.entry["bindings"]
        ]
        self._inputs = [tensor for tensor in self._tensors if "r" in tensor.access]
        self._outputs = [tensor for tensor in self._tensors if "w" in tensor.access]
        self._shader = shader_from_entry(compiled.name, compiled.entry, lambda: compiled.spirv)
        self._specs = {spec.name: spec.default for spec in self._shader.spec_constants}
        self._select = functools.partial(open_device, device, driver=driver, validation=validation)
        self._selector = device
        self._device: Device | None = None
        self._warm: WeakSet[Pipeline] = WeakSet()
        names = [param["name"] for param in self._params]
        for name in names:
            if name in _RESERVED | self._specs.keys():
                raise ShaderError(
                    f"parameter '{name}' of {self.name} cannot be passed by name: a "
                    "specialization constant or an argument of every call has this name too",
                    hint="rename the parameter",
                )

    def __repr__(self) -> str:
        def tensors(found: list[_Tensor]) -> str:
            return ", ".join(f"{tensor.name}: {tensor.dtype}" for tensor in found)

        keywords = ", ".join(self._keywords())
        call = f"{self.name}({tensors(self._inputs)}{' | ' if keywords else ''}{keywords})"
        return f"<shader {call} -> {tensors(self._outputs)}>"

    @property
    def device(self) -> DeviceInfo:
        """The device that it runs on; opened when it is first asked for."""
        return self._opened().info

    def __call__(
        self,
        *arrays: Array,
        shape: Shape | Mapping[str, Shape] | None = None,
        groups: Shape | None = None,
        **values: Number | Sequence[Number],
    ) -> Any:
        """Run the shader once.

        Args:
            *arrays: one for each `tensor_in` and `tensor_inout`, in their order, of its dtype and
                C-contiguous. They are not changed.
            shape: shapes of the `tensor_out`s, one for all or by name; that of the first array
                where None. Elements that the shader does not write are 0.
            groups: workgroups along x, y and z. Where None there is one invocation for each
                element (each vec4, when it is declared so) of the first output, and the template
                finds its place with `global_index()`.
            **values: parameters and specialization constants by name; those with a default may
                be left out.

        Returns:
            The `tensor_out`s and `tensor_inout`s in their order: an array, or a tuple of arrays
            when there are several.

        Raises:
            InvalidInputError: an array, a name or a value does not fit the declarations, or the
                device's limits.
            ShaderError: the device lacks a feature that the shader needs.
            DeviceNotFoundError: the device does not exist.
        """
        self._check_arrays(arrays)
        params, spec = self._split(values)
        shapes = self._shapes(arrays, shape)
        data = dict(zip((tensor.name for tensor in self._inputs), arrays, strict=True))
        device = self._opened()
        pipeline = self._pipeline(device, spec)
        timed = "timestamps" in device.info.features
        grid = self._grid(groups, spec, shapes, device)
        with ExitStack() as stack:
            recorder = device.recorder(timestamps=timed)
            ranges = {}
            for tensor in self._tensors:
                size = math.prod(shapes[tensor.name])
                buffer = stack.enter_context(device.allocate(tensor.bytes(size), MemoryKind.DEVICE))
                ranges[tensor.name] = bound = BufferRange(buffer, 0, buffer.nbytes)
                if tensor.name in data:
                    _write(buffer, data[tensor.name])
                else:
                    recorder.fill(bound)
            recorder.dispatch(pipeline, list(ranges.values()), params, grid)
            commands = stack.enter_context(recorder.finish())
            commands.run()
            if timed:  # the dispatch is the last command; an empty grid records none
                last = commands.timings()[-1:] if recorder.dispatch_count else []
                self.last_gpu_ms = sum(us for _, us in last) / 1000
            results = tuple(
                _read(ranges[tensor.name].buffer, tensor.dtype, shapes[tensor.name])
                for tensor in self._outputs
            )
        return results[0] if len(results) == 1 else results

    def _opened(self) -> Device:
        if self._device is None or self._device.closed or self._device.lost:
            chosen = self._selector
            if (environment.device_selector() if chosen == "auto" else chosen) == "cpu":
                raise InvalidInputError(
                    'a shader needs a Vulkan device; "cpu" is the numpy backend',
                    hint="`vkmnn devices` lists the devices",
                )
            self._device = self._select()
        return self._device

    # --- arguments -------------------------------------------------------------------------------

    def _keywords(self) -> list[str]:
        """Names of parameters and specialization constants, with their defaults."""
        known = {param["name"]: param["default"] for param in self._params} | self._specs
        return [name if default is None else f"{name}={default}" for name, default in known.items()]

    def _fault(self, message: str, hint: str | None = None) -> InvalidInputError:
        return InvalidInputError(f"{self.name}: {message}", hint=hint)

    def _check_arrays(self, arrays: Sequence[Any]) -> None:
        if len(arrays) != len(self._inputs):
            names = ", ".join(tensor.name for tensor in self._inputs) or "none"
            raise self._fault(
                f"{plural(len(arrays), 'array')} passed, {len(self._inputs)} wanted",
                hint=f"arrays: {names}; everything else is passed by name",
            )
        for tensor, array in zip(self._inputs, arrays, strict=True):
            if not isinstance(array, np.ndarray):
                raise self._fault(
                    f"'{tensor.name}' must be a numpy array, not {type(array).__name__}",
                    hint="wrap it with numpy.asarray",
                )
            if array.dtype != tensor.dtype:
                raise self._fault(
                    f"'{tensor.name}' is {tensor.dtype}, got an array of {array.dtype}",
                    hint=f"convert it with .astype('{tensor.dtype}')",
                )
            if not array.flags.c_contiguous:
                raise self._fault(
                    f"'{tensor.name}' is not C-contiguous",
                    hint="pass numpy.ascontiguousarray(...)",
                )

    def _split(self, values: Mapping[str, Any]) -> tuple[bytes, dict[str, Number]]:
        """Return the packed push constants, and the specialization constants that are given."""
        names = {param["name"] for param in self._params}
        unknown = sorted(values.keys() - names - self._specs.keys())
        if unknown:
            raise self._fault(
                f"there is no parameter or specialization constant '{unknown[0]}'",
                hint=f"there are: {', '.join(self._keywords()) or 'none'}",
            )
        params = b"".join(self._pack(param, values) for param in self._params)
        return params, {name: values[name] for name in values.keys() & self._specs.keys()}

    def _pack(self, param: Mapping[str, Any], values: Mapping[str, Any]) -> bytes:
        name, kind, count = param["name"], param["type"], param["count"]
        kind_text = f"{kind}[{count}]" if count else kind
        value = values.get(name, param["default"])
        if value is None:
            raise self._fault(f"parameter '{name}' is missing", hint=f"pass {name}=…, {kind_text}")
        try:
            return struct.pack(f"<{count or ''}{_CODES[kind]}", *(value if count else (value,)))
        except (struct.error, TypeError, OverflowError) as error:
            raise self._fault(
                f"parameter '{name}' is {kind_text}, not {value!r}: {error}"
            ) from None

    def _pipeline(self, device: Device, spec: Mapping[str, Number]) -> Pipeline:
        for axis in "xyz":
            if not spec.get(f"local_size_{axis}", 1):
                raise self._fault(f"local_size_{axis} must be above 0")
        try:
            pipeline = device.pipeline(self._shader, spec)
        except (TypeError, ValueError, OverflowError) as error:
            given = ", ".join(f"{name}={value!r}" for name, value in spec.items())
            raise self._fault(f"specialization constants {given}: {error}") from None
        if pipeline not in self._warm:  # otherwise a CPU device would compile in the first timing
            device.warm_up([pipeline])
            self._warm.add(pipeline)
        return pipeline

    def _shapes(
        self, arrays: Sequence[Array], given: Shape | Mapping[str, Shape] | None
    ) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor."""
        shapes = {
            tensor.name: array.shape for tensor, array in zip(self._inputs, arrays, strict=True)
        }
        free = [tensor.name for tensor in self._outputs if tensor.name not in shapes]
        named = given if isinstance(given, Mapping) else {}
        for name in named:
            if name not in free:
                raise self._fault(
                    f"shape: there is no tensor_out '{name}'", hint=f"there are: {', '.join(free)}"
                )
        for name in free:
            wanted = named.get(name) if isinstance(given, Mapping) else given
            if wanted is None and not arrays:
                raise self._fault(f"the shape of '{name}' is missing", hint="pass shape=(…)")
            shapes[name] = arrays[0].shape if wanted is None else self._ints("shape", wanted)
        return shapes

    def _ints(self, what: str, value: Any) -> tuple[int, ...]:
        """Return a number or sequence of numbers as a tuple of sizes."""
        try:
            sizes = tuple(map(index, value if isinstance(value, Sequence) else (value,)))
        except TypeError:
            sizes = (-1,)
        if min(sizes, default=0) < 0:
            raise self._fault(f"{what} must be non-negative integers, not {value!r}")
        return sizes

    def _grid(
        self,
        groups: Shape | None,
        spec: Mapping[str, Number],
        shapes: Mapping[str, tuple[int, ...]],
        device: Device,
    ) -> tuple[int, int, int]:
        if groups is not None:
            sizes = self._ints("groups", groups)
            if not 1 <= len(sizes) <= 3:
                raise self._fault(f"groups is one to three numbers, not {groups!r}")
            x, y, z = (*sizes, 1, 1)[:3]
            return x, y, z
        x, y, z = (int({**self._specs, **spec}[f"local_size_{axis}"]) for axis in "xyz")
        if (y, z) != (1, 1):
            raise self._fault(
                f"workgroups are of {x} x {y} x {z} invocations: the grid does not follow from "
                "the output",
                hint="pass groups=(x, y, z)",
            )
        if not self._outputs:
            raise self._fault(
                "there is no output from which to take the number of invocations",
                hint="pass groups=…",
            )
        first = self._outputs[0]
        count = -(-math.prod(shapes[first.name]) // first.kind.lanes)
        return linear_groups(count, x, device.info.limits)


def _write(buffer: Buffer, array: Array) -> None:
    """Copy an array to the buffer, with zeros after it."""
    buffer.write(0, array)
    if buffer.nbytes > array.nbytes:
        buffer.write(array.nbytes, np.zeros(buffer.nbytes - array.nbytes, np.uint8))


def _read(buffer: Buffer, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
    return buffer.read(0, math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)


def shader(
    source: str | Path,
    /,
    *,
    requires: Iterable[str] = (),
    name: str = "shader",
    device: str | int = "auto",
    driver: str | None = None,
    validation: bool | None = None,
    **axes: str | int,
) -> ShaderFunction:
    """Compile a template and return it as a function of numpy arrays, for experiments.

    Needs `pip install 'vkmnn[codegen]'`; compiled shaders are cached on disk.

    Args:
        source: the text of a template, or a template file: a Path, or a string that ends with
            `.comp.j2`, which may also be the name of a built-in template.
        requires: features that the shader needs, e.g. "storage16", as in macro.json.
        name: name of a template given as text, for errors and timings.
        device: "auto" (`VKMNN_DEVICE`, or otherwise the best), an index, part of a name, or a UUID;
            opened on the first call.
        driver: the Vulkan binding; None uses `VKMNN_DRIVER` or the default.
        validation: run under the Khronos validation layer; its messages become errors.
        **axes: a value for each axis of the template.

    Raises:
        ShaderError: the template is wrong, with its line; or the extra is not installed.
    """
    compiled = compile_source(source, axes, requires=requires, name=name)
    return ShaderFunction(compiled, device, driver=driver, validation=validation)
