"""Cases: small networks that make the backend dispatch a kernel, and their tables."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from vkmnn.base.elements import FLOATS, NARROW, Arithmetic, FloatElement
from vkmnn.base.registry import Registry
from vkmnn.core.float_range import to_element
from vkmnn.core.plan import Plan
from vkmnn.cpu_fallback import CpuBackend, run_op
from vkmnn.ir import OP_TYPES, Array, DType, Graph, Op, OpAttrs, TensorInfo
from vkmnn.ir.ops import PoolingAttrs
from vkmnn.runtime.shader import BindingType
from vkmnn.shaders.library import BUILTIN, ShaderLibrary

ROUNDING_STEPS = 4
"""Tolerance for a few narrow intermediate results, in steps of the largest result."""


@dataclass(frozen=True, slots=True)
class Case:
    """A network with inputs; the device must compute what numpy computes.

    A result may differ from numpy's by `atol + rtol * |numpy's|`; integers and bools by nothing.
    With `raises`, a part of a message, the device must refuse the inputs with an InvalidInputError
    instead. `takes` holds candidates by kind of choice (see `vkmnn.vulkan.choice`), to be taken
    wherever they are offered. `floats` says how floats are stored on the device, from the inputs
    on: if narrow, numpy computes with inputs and constants that are rounded to it, and
    ROUNDING_STEPS steps of the largest result are allowed on top; two steps of a result where
    nothing else is allowed. With `images`, tensors lie in images wherever there are kernels for
    that. With a narrow `arithmetic`, kernels are offered that compute in it, too.
    """

    graph: Graph
    feeds: Mapping[str, Array]
    rtol: float = 1e-5
    atol: float = 1e-5
    raises: str = ""
    takes: Mapping[str, Hashable] = field(default_factory=dict)
    floats: FloatElement = "f32"
    images: bool = False
    arithmetic: Arithmetic = "f32"

    def __str__(self) -> str:
        shapes = ", ".join(f"{a.dtype}{list(a.shape)}" for a in self.feeds.values())
        floats = "" if self.floats == "f32" else f"{FLOATS[self.floats].label} "
        forms = f"{floats}{'images ' if self.images else ''}"
        return f"{forms}{self.graph.name}({shapes})"

    @property
    def storage(self) -> str:
        """Storage of tensors: an argument of backends."""
        return "image" if self.images else "buffer"

    @property
    def infos(self) -> dict[str, TensorInfo]:
        """Static descriptions of the inputs."""
        return {name: tensor_info(name, array) for name, array in self.feeds.items()}

    def expected(self) -> list[Array]:
        """Return numpy's results, one array per output."""
        cpu = CpuBackend()
        graph, feeds = self.graph, self.feeds
        if self.floats != "f32":
            kept, element = _content(graph), self.floats
            constants = _rounded(graph.constants, lambda x: to_element(x, element), kept)
            graph = replace(graph, constants=constants)
            feeds = _rounded(feeds, lambda x: _overflowing(x, element), kept)
        plan = Plan(graph, self.infos, {}, cpu, cpu, run_op)
        results = plan.execute(feeds)
        return [results[info.name] for info in graph.outputs]


def _content(graph: Graph) -> set[str]:
    """Return the tensors whose contents plans depend on, such as the scales of a Resize."""
    return {
        op.inputs[i] for op in graph.ops for i in OP_TYPES[op.type].content if i < len(op.inputs)
    }


def _rounded(
    arrays: Mapping[str, Array], how: Callable[[Array], Array], kept: Collection[str]
) -> dict[str, Array]:
    return {
        name: how(array).astype(array.dtype)
        if array.dtype.kind == "f" and name not in kept
        else array
        for name, array in arrays.items()
    }


def _overflowing(array: Array, element: FloatElement) -> Array:
    with np.errstate(over="ignore"):
        return array.astype(FLOATS[element].dtype)


def tensor_info(name: str, array: Array) -> TensorInfo:
    """Return the static description of an array."""
    return TensorInfo(name, DType.from_numpy(array.dtype), array.shape)


def op_case(
    op_type: str,
    attrs: OpAttrs,
    inputs: Sequence[Array | None],
    *,
    constant: Collection[int] = (),
    outputs: int = 1,
    rtol: float = 1e-5,
    atol: float = 1e-5,
    raises: str = "",
) -> Case:
    """Return the case of one op.

    Args:
        op_type: a name of the vocabulary.
        attrs: its attributes.
        inputs: arrays, None for absent optional inputs.
        constant: numbers of the inputs that are constants of the graph.
        outputs: how many outputs the op has.
        rtol: see `Case`.
        atol: see `Case`.
        raises: see `Case`.
    """
    names = [f"in{i}" if array is not None else "" for i, array in enumerate(inputs)]
    op = Op(op_type, "op", names, [f"out{i}" for i in range(outputs)], attrs)
    arrays = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    constants = {n: arrays[n] for i, n in enumerate(names) if n and i in constant}
    infos = [
        tensor_info(name, array) for name, array in zip(op.outputs, run_op(op, inputs), strict=True)
    ]
    return replace(_case(op_type, [op], arrays, constants, infos, rtol, atol), raises=raises)


def blocked_case(
    op_type: str,
    attrs: OpAttrs,
    inputs: Sequence[Array | None],
    *,
    constant: Collection[int] = (),
    rtol: float = 1e-5,
    atol: float = 1e-5,
) -> Case:
    """Return the case of an op with channel-blocked first input and output (NC4HW4).

    The op is between poolings of one pixel, which leave values unchanged and require that layout.
    """
    x = inputs[0]
    assert x is not None
    ones = (1,) * (x.ndim - 2)
    pooling = PoolingAttrs("MAX", ones, ones, ones, (0,) * (2 * len(ones)))
    names = [f"in{i}" if array is not None else "" for i, array in enumerate(inputs)]
    op = Op(op_type, "op", ["blocked", *names[1:]], ["made"], attrs)
    result = run_op(op, inputs)[0]
    ops = [Op("Pooling", "before", ["in0"], ["blocked"], pooling), op]
    if result.ndim == x.ndim:
        ops.append(Op("Pooling", "after", ["made"], ["out"], pooling))
    arrays = {name: array for name, array in zip(names, inputs, strict=True) if array is not None}
    constants = {n: arrays[n] for i, n in enumerate(names) if n and i in constant}
    infos = [tensor_info(ops[-1].outputs[0], result)]
    return _case(f"blocked {op_type}", ops, arrays, constants, infos, rtol, atol)


def _case(
    name: str,
    ops: Sequence[Op],
    arrays: Mapping[str, Array],
    constants: Mapping[str, Array],
    outputs: Sequence[TensorInfo],
    rtol: float,
    atol: float,
) -> Case:
    feeds = {name: array for name, array in arrays.items() if name not in constants}
    inputs = [tensor_info(name, array) for name, array in feeds.items()]
    return Case(Graph(name, inputs, list(outputs), list(ops), dict(constants)), feeds, rtol, atol)


# --- tables ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Variant:
    """A kernel variant under test: its name, its template and its axis values."""

    name: str
    template: str
    axes: Mapping[str, str | int] = field(hash=False)
    library: ShaderLibrary = field(hash=False)

    def __str__(self) -> str:
        return self.name

    @property
    def element(self) -> str | int | None:
        """Its value on the axis `element`, None without one."""
        return self.axes.get("element")

    @property
    def narrow(self) -> bool:
        """Whether its weights are bytes: constants of quantised operators."""
        return self.element in ("w8", "c8")

    @property
    def floats(self) -> FloatElement:
        """The storage of floats in the variant."""
        narrow = [name for name in FLOATS if name in NARROW]
        for name in narrow:
            if name in map(self.axes.get, ("element", "result", "source")):
                return name
        # Its template names it. Loads through texel buffers alone need no feature.
        needs = self.library.load(self.name).requires
        return next((name for name in narrow if needs >= {*FLOATS[name].needs}), "f32")

    @property
    def arithmetic(self) -> Arithmetic:
        """The arithmetic of the variant's kernels, on request."""
        if self.by_limbs:
            return "limbs"
        return "f16" if self.template.endswith("_half") else "f32"

    @property
    def by_limbs(self) -> bool:
        """Whether float32 numbers are multiplied as sums of two float16 numbers."""
        return "l2" in str(self.axes.get("tile", ""))

    @property
    def images(self) -> bool:
        """Whether the variant works on tensors in images."""
        bindings = self.library.load(self.name).bindings
        return any(binding.type is BindingType.IMAGE for binding in bindings)

    @property
    def dtype(self) -> str:
        """Element type of the arithmetic: "f32" or "i32"."""
        return "i32" if self.axes.get("element") == "i32" else "f32"


CaseMaker = Callable[[Variant], Iterable[Case]]
M = TypeVar("M", bound=CaseMaker)

OpCaseMaker = Callable[[], Iterable[Case]]
OpM = TypeVar("OpM", bound=OpCaseMaker)

OP_CASES: Registry[str, OpCaseMaker] = Registry("cases")


def op_cases(function: OpM) -> OpM:
    """Register a function that yields cases of an op for any kernel.

    The shared context of a kernel's cases; the function of `shader_cases` yields from it.
    """
    OP_CASES.register(function.__name__)(function)
    return function


CASES: Registry[str, tuple[CaseMaker, ShaderLibrary]] = Registry("shader cases of")


def shader_cases(template: str, library: ShaderLibrary = BUILTIN) -> Callable[[M], M]:
    """Register a function that yields the cases of each variant of a template.

    Which kernel does a job depends on the device; the runner finds the choices that lead to the
    variant (see `vkmnn.vulkan.choice`). At least one case must reach it with some choice.

    Args:
        template: its name without the suffix `.comp.j2`.
        library: holds the built shaders.

    Raises:
        PluginError: the template has cases already.
    """

    def register(function: M) -> M:
        CASES.register(template)((function, library))
        return function

    return register


def cases_of(variant: Variant) -> Iterator[Case]:
    """Yield the cases of a variant: the template's, with floats stored as the variant has them."""
    entry = CASES.get(variant.template)
    assert entry is not None, f"no cases for {variant.template}: write one with @shader_cases"
    for case in entry[0](variant):
        floats = variant.floats if case.floats == "f32" else case.floats
        yield replace(case, floats=floats, images=variant.images, arithmetic=variant.arithmetic)


def variants() -> list[Variant]:
    """Return all variants of every library that cases are registered for."""
    libraries = dict.fromkeys(library for _, library in CASES.values())
    return [
        Variant(name, template, axes, library)
        for library in libraries
        for name, template, axes in library.variants()
    ]
