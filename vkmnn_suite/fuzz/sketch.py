"""A model while it grows: every tensor has a value, which the oracle computes as nodes are added.

So recipes need no shape inference, know the values they build on, and cannot add an invalid node.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkmnn.host.bounded import expected_bytes
from vkmnn.ir import Array
from vkmnn_suite.fuzz.defined import undefined
from vkmnn_suite.fuzz.oracle import Oracle, OracleError
from vkmnn_suite.fuzz.schemas import UNKNOWN_TO_ONNX, Skip, find_schema, input_dtypes
from vkmnn_suite.fuzz.values import ANY, Spread, draw

MAX_ELEMENTS = 6000
LARGE_ELEMENTS = 200_000
MAX_RANK = 6
NEWEST = onnx.defs.onnx_opset_version()
OLDEST = 7
MICROSOFT = "com.microsoft"

_SIZES = (1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 5, 5, 7, 7, 8, 11, 13, 16, 17, 31, 33)
_LARGE_SIZES = (1, 2, 3, 17, 31, 33, 61, 64, 67, 97, 127, 128, 131, 191, 251, 256, 257, 263)
_LONG = (1009, 4093, 16_381, 65_521, 99_991)
_GROWTH = 10
"""The factor by which axes of large tensors may be longer."""

_EMPTY_RATE = 0.02
_REUSE_RATE = 0.8
"""How often a node reads an existing value."""

_BENT_RATE = 0.5
"""How often a computed value is converted to fit if none does."""

_CASTS = ("float32", "float16", "float64")

_WIDE_RATE = 0.02
"""How often a 64-bit integer that the device cannot hold is kept."""

_INT32 = np.iinfo(np.int32)
_DTYPE_WEIGHTS = {"float32": 12, "float16": 2, "int64": 2, "int32": 2}


@dataclass(slots=True)
class Value:
    """A tensor of the model.

    Attributes:
        name: its name in the model.
        array: its value in the first run.
        kind: "input", "constant" or "node".
        spread: the values that an input may have in other runs; None if it must not change.
    """

    name: str
    array: Array
    kind: str = "node"
    spread: Spread | None = None

    @property
    def dtype(self) -> str:
        """Element type, by numpy's name."""
        return str(self.array.dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape in the first run."""
        return self.array.shape

    @property
    def rank(self) -> int:
        """Number of axes."""
        return self.array.ndim


@dataclass
class Sketch:
    """Values and nodes so far.

    Args:
        rng: random numbers that decide what is built.
        opset: version of ONNX's operators.
        oracle: computes the nodes.
        large: tensors reach LARGE_ELEMENTS, beyond tiles, workgroups and thresholds of kernels.
    """

    rng: random.Random
    opset: int
    oracle: Oracle
    large: bool = False
    values: dict[str, Value] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Seed numpy's generator from the other."""
        self.draws = np.random.default_rng(self.rng.getrandbits(64))
        self._count = 0

    @property
    def max_elements(self) -> int:
        """Elements that a tensor may have."""
        return LARGE_ELEMENTS if self.large else MAX_ELEMENTS

    # --- choices ---------------------------------------------------------------------------------

    def chance(self, rate: float) -> bool:
        """True with this probability."""
        return bool(self.rng.random() < rate)

    def choose(self, *options: Any) -> Any:
        """Return one of the arguments."""
        return self.rng.choice(options)

    def since(self, opset: int) -> bool:
        """True if the model's opset is at least this one."""
        return self.opset >= opset

    def dtype(self, op: str, index: int = 0, domain: str = "") -> str:
        """Return an element type that the operator's input allows.

        Raises:
            Skip: the opset has no such operator.
        """
        return self.one_of(input_dtypes(op, self.opset, index, domain))

    def one_of(self, dtypes: Sequence[str]) -> str:
        """Return one of these element types: one that already occurs, or a frequent one.

        Raises:
            Skip: there is none.
        """
        if not dtypes:
            raise Skip
        made = [v.dtype for v in self.values.values() if v.kind == "node" and v.dtype in dtypes]
        if made and self.chance(_REUSE_RATE):
            return self.rng.choice(made)
        weights = [_DTYPE_WEIGHTS.get(name, 1) for name in dtypes]
        return str(self.rng.choices(dtypes, weights)[0])

    def size(self, largest: int = 33) -> int:
        """Return the extent of an axis: up to `largest`, or ten times that for large tensors."""
        if self.large:
            return self.rng.choice([size for size in _LARGE_SIZES if size <= _GROWTH * largest])
        return self.rng.choice([size for size in _SIZES if size <= largest])

    def within(self, sizes: Sequence[int]) -> list[int]:
        """Return a shape with its longest axes shortened to half of the elements allowed."""
        cut = list(sizes)
        while int(np.prod(cut)) > self.max_elements // 2:
            cut[cut.index(max(cut))] //= 2
        return cut

    def shape(
        self, rank: int | None = None, min_rank: int = 0, max_rank: int = MAX_RANK
    ) -> list[int]:
        """Return a shape of at most half the elements allowed, rarely with an empty axis."""
        if rank is None:
            rank = self.rng.choice(
                [r for r in (0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 5, 6) if min_rank <= r <= max_rank]
            )
        cap = 33 if rank <= 3 else 11 if rank == 4 else 5
        sizes = [self.size(cap) for _ in range(rank)]
        if self.large and 1 <= rank <= 3 and self.chance(0.4):
            sizes[self.rng.randrange(rank)] = self.rng.choice(_LONG)
        sizes = self.within(sizes)
        if sizes and self.chance(_EMPTY_RATE):
            sizes[self.rng.randrange(rank)] = 0
        return sizes

    def broadcast(self, shape: Sequence[int]) -> list[int]:
        """Return a shape that broadcasts to this one."""
        drop = self.rng.choice([0, 0, 0, 0, self.rng.randint(0, len(shape))])
        kept = list(shape)[drop:]
        rate = self.choose(0.0, 0.0, 0.3, 0.6, 1.0)
        return [1 if self.chance(rate) else size for size in kept]

    def axis(self, rank: int) -> int:
        """Return an axis, counted from the front or the back."""
        if rank == 0:
            raise Skip
        return self.rng.randrange(-rank, rank)

    def axes(self, rank: int, min_rank: int = 1) -> list[int]:
        """Return distinct axes, some counted from the back."""
        if rank < min_rank:
            raise Skip
        picked = self.rng.sample(range(rank), self.rng.randint(min_rank, rank))
        return [axis - rank if self.chance(0.3) else axis for axis in picked]

    # --- values ----------------------------------------------------------------------------------

    def pick(
        self,
        dtype: str,
        shape: Sequence[int] | None = None,
        *,
        min_rank: int = 0,
        max_rank: int = MAX_RANK,
        spread: Spread = ANY,
        accept: Callable[[Value], bool] | None = None,
    ) -> Value:
        """Return an existing value or a new one.

        Args:
            dtype: its element type.
            shape: its shape; None for any.
            min_rank: its smallest rank, where no shape is given.
            max_rank: its largest rank.
            spread: the values it may have.
            accept: a further condition for existing values.
        """
        if self.chance(_REUSE_RATE):
            fitting = [
                value
                for value in self.values.values()
                if value.dtype == dtype
                and (
                    min_rank <= value.rank <= max_rank
                    if shape is None
                    else value.shape == tuple(shape)
                )
                and (accept is None or accept(value))
                and (value.kind != "constant" or self.chance(0.3))
                and (value.kind == "node" or value.spread is not None)
                and spread.fits(value.array)
            ]
            if fitting:
                recent = fitting[-3:]
                return self.rng.choice(recent if self.chance(0.6) else fitting)
        if self.chance(_BENT_RATE):
            bent = self._bent(dtype, shape, min_rank, max_rank, spread)
            if bent is not None and (accept is None or accept(bent)):
                return bent
        return self.fresh(
            dtype, self.shape(None, min_rank, max_rank) if shape is None else shape, spread
        )

    def _bent(
        self, dtype: str, shape: Sequence[int] | None, min_rank: int, max_rank: int, spread: Spread
    ) -> Value | None:
        """Return a computed value, converted to fit by casts, slices, reshapes and bounds.

        None if that is not simple.
        """
        made = [v for v in self.values.values() if v.kind == "node" and v.array.size]
        made = [v for v in made if v.dtype == dtype or (dtype in _CASTS and v.dtype in _CASTS)]
        if shape is None:
            made = [v for v in made if min_rank <= v.rank <= max_rank]
        if not made or spread.distinct or spread.gap or 0 in (shape or ()):
            return None
        mark = self.mark()
        try:
            value = self.rng.choice(made[-4:])
            if value.dtype != dtype:
                code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
                value = self.one("Cast", value, to=code)
            if shape is not None:
                value = self._reshaped(value, shape)
            return self._bounded(value, spread)
        except Skip:
            self.reset(mark)
            return None

    def _reshaped(self, value: Value, shape: Sequence[int]) -> Value:
        """Return the first elements of a value, repeated if there are too few, in a shape."""
        size, wanted = value.array.size, int(np.prod(shape))
        if value.shape == tuple(shape):
            return value
        if size != wanted:
            value = self.one("Reshape", value, self.parameter([-1]))
            if size < wanted:
                value = self.one("Tile", value, self.parameter([-(-wanted // size)]))
            if value.array.size != wanted:
                first, end = [0], [wanted]
                if self.since(10):
                    value = self.one("Slice", value, self.parameter(first), self.parameter(end))
                else:
                    value = self.one("Slice", value, starts=first, ends=end)
        return self.one("Reshape", value, self.parameter(np.array(shape, np.int64)))

    def _bounded(self, value: Value, spread: Spread) -> Value:
        """Return the value within a spread."""
        if spread.fits(value.array):
            return value
        low, high = spread.low, spread.high
        if value.array.dtype.kind != "f" or not np.isfinite(value.array).all():
            raise Skip
        if self.since(11):
            bounds = [self.parameter(bound, value.dtype) for bound in (low, high)]
            return self.one("Clip", value, *bounds)
        return self.one("Clip", value, min=low, max=high)

    def fresh(self, dtype: str, shape: Sequence[int], spread: Spread = ANY) -> Value:
        """Return a new input or constant."""
        array = draw(self.draws, dtype, tuple(shape), spread)
        return self.source(array, spread, constant=0.35)

    def weight(self, dtype: str, shape: Sequence[int], spread: Spread = ANY) -> Value:
        """Return a new value that is usually constant."""
        return self.source(draw(self.draws, dtype, tuple(shape), spread), spread, constant=0.75)

    def parameter(self, values: Any, dtype: str = "int64", constant: float = 0.85) -> Value:
        """Return a value that must be the same in every run: axes, shapes, indices."""
        return self.source(np.asarray(values, dtype), None, constant=constant)

    def source(self, array: Array, spread: Spread | None, constant: float) -> Value:
        """Return a value that nothing computes; `constant` is the chance that no run changes it."""
        if self.chance(constant):
            name = self._name("c")
            if self.chance(0.25):
                tensor = numpy_helper.from_array(array, name)
                self.nodes.append(helper.make_node("Constant", [], [name], value=tensor))
            value = Value(name, array, "constant", spread)
        else:
            value = Value(self._name("x"), array, "input", spread)
        self.values[value.name] = value
        return value

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    # --- nodes -----------------------------------------------------------------------------------

    def node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: int = 1,
        domain: str = "",
        captured: Sequence[Value] = (),
        **attributes: Any,
    ) -> list[Value]:
        """Add a node and return its outputs.

        Args:
            op: its operator.
            inputs: its inputs; None for an absent one.
            outputs: how many outputs it has.
            domain: domain of the operator.
            captured: the values that its inner graphs capture.
            attributes: those that are not None.

        Raises:
            Skip: no oracle computes it, its result is not defined, or it is too large.
        """
        if not domain and op not in UNKNOWN_TO_ONNX:
            find_schema(op, self.opset, domain)
        present = list(inputs)
        while present and present[-1] is None:
            present.pop()
        node = helper.make_node(
            op,
            [value.name if value else "" for value in present],
            [self._name("t") for _ in range(outputs)],
            domain=domain,
            **{name: value for name, value in attributes.items() if value is not None},
        )
        arrays = [value.array if value else None for value in present]
        around = sorted({value.name: value for value in captured}.items())
        arrays += [value.array for name, value in around if name not in node.input]
        if undefined(node, arrays):
            raise Skip
        if expected_bytes(node, self.opsets(domain), arrays) > 8 * LARGE_ELEMENTS:
            raise Skip
        try:
            results = self.oracle.node(node, self.opsets(domain), arrays)
        except OracleError as error:
            raise Skip from error
        for array in results:
            self._check(array, arrays)
        self.nodes.append(node)
        made = [Value(name, a) for name, a in zip(node.output, results, strict=True)]
        self.values.update((value.name, value) for value in made)
        return made

    def one(self, op: str, *inputs: Value | None, domain: str = "", **attributes: Any) -> Value:
        """Add a node and return its only output; raises as `node`."""
        return self.node(op, inputs, 1, domain, **attributes)[0]

    def opsets(self, domain: str = "") -> dict[str, int]:
        """Return the opset imports that a node of a domain needs."""
        return {"": self.opset} | ({domain: 1} if domain else {})

    def _check(self, array: Array, inputs: Sequence[Array | None]) -> None:
        if (
            array.dtype.kind not in "fiub"
            or array.ndim > MAX_RANK
            or array.size > self.max_elements
        ):
            raise Skip
        if array.dtype.name in ("int64", "uint64", "uint32") and array.size:
            beyond = int(array.max()) > _INT32.max or int(array.min()) < _INT32.min
            if beyond and not self.chance(_WIDE_RATE):
                raise Skip
        if array.dtype.kind == "f" and array.size and not np.isfinite(array).all():
            given = [a for a in inputs if a is not None and a.dtype.kind == "f"]
            rate = 0.0 if array.dtype == np.float16 else 0.2  # float16 overflows at outputs only
            if all(np.isfinite(a).all() for a in given) and not self.chance(rate):
                raise Skip

    # --- going back ------------------------------------------------------------------------------

    def mark(self) -> tuple[int, int]:
        """Return a mark for `reset`."""
        return len(self.nodes), len(self.values)

    def reset(self, mark: tuple[int, int]) -> None:
        """Remove everything after a mark."""
        nodes, values = mark
        del self.nodes[nodes:]
        for name in list(self.values)[values:]:
            del self.values[name]
