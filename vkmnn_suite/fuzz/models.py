"""Random models: recipes and patterns, then inputs, outputs, shapes and further runs."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
import onnx
from onnx import helper, numpy_helper

from vkmnn.errors import InvalidInputError, page
from vkmnn.ir import Array
from vkmnn_suite.fuzz.case import Case, Feeds
from vkmnn_suite.fuzz.defined import undefined
from vkmnn_suite.fuzz.oracle import Oracle, OracleError, read_names
from vkmnn_suite.fuzz.recipes import PATTERNS, RECIPES
from vkmnn_suite.fuzz.schemas import UNKNOWN_TO_ONNX, Skip, find_schema
from vkmnn_suite.fuzz.sketch import (
    LARGE_ELEMENTS,
    MAX_ELEMENTS,
    MICROSOFT,
    NEWEST,
    OLDEST,
    Sketch,
    Value,
)
from vkmnn_suite.fuzz.values import draw

_PATTERN_RATE = 0.2
_ATTEMPTS = 60
_JOINED_RATE = 0.8
"""How often a node must read the result of another."""

_NODES = (1, 1, 2, 2, 3, 3, 4, 5, 6)
_SYMBOL = "n"
_COMMON_OPSETS = range(11, 22)
_TRIES = 4

_HEAVY = (
    *("MatMul", "MatMul", "Gemm", "Einsum", "Conv", "Conv", "ConvTranspose", "Attention"),
    *("QLinearMatMul", "QLinearConv", "MatMulInteger", "ConvInteger", "Softmax", "LogSoftmax"),
    *("ReduceSum", "ReduceMax", "ReduceMean", "ReduceLogSumExp", "ArgMax", "TopK", "CumSum"),
    *("LayerNormalization", "InstanceNormalization", "GroupNormalization", "RMSNormalization"),
    *("MaxPool", "AveragePool", "GlobalAveragePool", "Resize", "Transpose", "Concat", "Gather"),
)
"""Operators whose kernels share work among invocations and groups."""

_HEAVY_RATE = 0.7
"""How often it is one of these that gets large tensors."""


def make_case(
    seed: int, number: int, oracle: Oracle, ops: Sequence[str] = (), large: float = 0.0
) -> Case:
    """Return the model of this number; the same arguments give the same model.

    Models feature the operators in turn; others are added at random.

    Args:
        seed: the seed of the run.
        number: the number of the model.
        oracle: computes the values.
        ops: the operators to feature in turn; all by default.
        large: how often a model has large tensors, and one operator or two.
    """
    rng = random.Random(f"{seed}/{number}")
    names = list(ops) or list(RECIPES)
    wanted = names[number % len(names)]
    is_large = rng.random() < large
    if is_large and not ops and rng.random() < _HEAVY_RATE:
        wanted = rng.choice(_HEAVY)
    for attempt in itertools.count():
        sketch = Sketch(rng, _opset(rng, wanted), oracle, is_large)
        _grow(sketch, wanted)
        holds = _holds(sketch, wanted) or (not ops and attempt >= _TRIES)
        kept = {name for node in sketch.nodes for name in (*node.input, *node.output)}
        sizes = [value.array.size for name, value in sketch.values.items() if name in kept]
        grown = not is_large or attempt >= _TRIES or max(sizes, default=0) > MAX_ELEMENTS
        if sketch.nodes and holds and grown:
            return _finish(sketch, f"seed {seed}, model {number}")
        if attempt > 100 * _TRIES:
            raise InvalidInputError(f"no model with a valid {wanted} was found")
    raise AssertionError


def refuse_unknown(names: Iterable[str]) -> None:
    """Raise InvalidInputError if there is no recipe for one of these operators."""
    for name in names:
        _opsets(name)


@lru_cache(maxsize=512)
def _opsets(name: str) -> tuple[int, ...]:
    """Return the opsets that have an operator."""
    if name not in RECIPES:
        raise InvalidInputError(
            f"there is no recipe for an operator '{name}'",
            hint=f"give a name of {page('operators')}, as Gemm or com.microsoft::Gelu",
        )
    found = []
    for opset in range(OLDEST, NEWEST + 1):
        with contextlib.suppress(Skip):
            if "::" not in name and name not in UNKNOWN_TO_ONNX:
                find_schema(name, opset)
            found.append(opset)
    return tuple(found)


def _opset(rng: random.Random, wanted: str) -> int:
    having = _opsets(wanted)
    common = [opset for opset in having if opset in _COMMON_OPSETS]
    return rng.choice(common) if common and rng.random() < 0.4 else rng.choice(having)


def _holds(sketch: Sketch, name: str) -> bool:
    domain, _, op = name.rpartition("::")
    return any((node.domain, node.op_type) == (domain, op) for node in sketch.nodes)


def _grow(sketch: Sketch, wanted: str) -> None:
    names = list(RECIPES)
    patterns = list(PATTERNS)
    left = sketch.rng.choice((1, 1, 2) if sketch.large else _NODES)
    turn = sketch.rng.choice([0, sketch.rng.randrange(left)])  # how many come before
    done = 0
    for attempt in range(_ATTEMPTS):
        if left <= 0:
            return
        mark = sketch.mark()
        try:
            if turn <= done and attempt < _ATTEMPTS // 2 and not _holds(sketch, wanted):
                RECIPES[wanted](sketch, wanted.rpartition("::")[2])
            elif sketch.chance(_PATTERN_RATE):
                PATTERNS[sketch.rng.choice(patterns)](sketch)
            else:
                name = sketch.rng.choice(names)
                RECIPES[name](sketch, name.rpartition("::")[2])
            if done and sketch.chance(_JOINED_RATE) and not _joined(sketch, mark):
                raise Skip
            done += 1
            left -= 1 if len(sketch.nodes) - mark[0] < 4 else 2
        except Skip:
            sketch.reset(mark)


def _joined(sketch: Sketch, mark: tuple[int, int]) -> bool:
    """True if a node after the mark reads a value that one before it computes."""
    before = {name for node in sketch.nodes[: mark[0]] for name in node.output}
    computed = {name for name in before if sketch.values[name].kind == "node"}
    return any(computed & set(read_names(node)) for node in sketch.nodes[mark[0] :])


# --- from a sketch to a model --------------------------------------------------------------------


def _finish(s: Sketch, origin: str) -> Case:
    outputs = _outputs(s)
    read = {name for node in s.nodes for name in read_names(node)} | {
        value.name for value in outputs
    }
    sources = [v for v in s.values.values() if v.kind != "node" and v.name in read]
    inputs = [value for value in sources if value.kind == "input"]
    made = {name for node in s.nodes for name in node.output}
    constants = [v for v in sources if v.kind == "constant" and v.name not in made]
    nodes = [n for n in s.nodes if n.op_type != "Constant" or n.output[0] in read]
    first = {value.name: value.array for value in inputs}
    dims: dict[str, list[int | str]] = {v.name: list(v.shape) for v in inputs}
    runs: list[Feeds] = [first]
    size = _symbolic_size(s, inputs)
    if size is not None:
        named = {size, _mistaken(s, inputs, size)}
        for value in inputs:
            dims[value.name] = [_SYMBOL if n in named else n for n in value.shape]
    domains = {node.domain for node in nodes}
    model = helper.make_model(
        helper.make_graph(
            nodes,
            "fuzz",
            [_value_info(v, dims[v.name]) for v in inputs] + _overridable(s, constants),
            [_value_info(v, _declared(s, v, size is None)) for v in outputs],
            [numpy_helper.from_array(value.array, value.name) for value in constants],
        ),
        opset_imports=[
            helper.make_opsetid("", s.opset),
            *(helper.make_opsetid(MICROSOFT, 1) for _ in domains & {MICROSOFT}),
        ],
        ir_version=s.choose(8, 9, 10),
        producer_name="vkmnn_suite.fuzz",
    )
    if inputs and s.chance(0.7):
        runs.extend(_second(s, model, inputs, size))
    return Case(model, tuple(runs), origin)


def _outputs(s: Sketch) -> list[Value]:
    """Return all that nothing reads, and some of the rest."""
    made = [s.values[name] for node in s.nodes for name in node.output if name]
    read = {name for node in s.nodes for name in read_names(node)}
    outputs = [
        value
        for value in made
        if value.kind == "node" and (value.name not in read or s.chance(0.15))
    ]
    sources = [value for value in s.values.values() if value.kind == "input"]
    if sources and s.chance(0.04):
        outputs.append(s.rng.choice(sources))
    return outputs


def _value_info(value: Value, dims: Sequence[int | str] | None) -> onnx.ValueInfoProto:
    code = helper.np_dtype_to_tensor_dtype(value.array.dtype)
    return helper.make_tensor_value_info(value.name, code, dims)


def _declared(s: Sketch, value: Value, static: bool) -> list[int | str] | None:
    """Return the declared shape of an output: often empty."""
    if value.kind == "input" or not static or s.chance(0.4):
        return None
    return list(value.shape)


def _overridable(s: Sketch, constants: Sequence[Value]) -> list[onnx.ValueInfoProto]:
    """Return some constants as inputs with a default, which are never fed."""
    if not s.chance(0.05):
        return []
    return [_value_info(value, list(value.shape)) for value in constants if s.chance(0.5)]


def _symbolic_size(s: Sketch, inputs: Sequence[Value]) -> int | None:
    """Return the size of the axes that become symbolic, or None for none."""
    free = [v for v in inputs if v.spread is not None]
    sizes = sorted({size for value in free for size in value.shape})
    if not sizes or not s.chance(0.35):
        return None
    return s.rng.choice(sizes)


def _mistaken(s: Sketch, inputs: Sequence[Value], size: int) -> int:
    """Return another size that the model calls by the same name, as exporters do at times."""
    free = {n for v in inputs if v.spread is not None for n in v.shape}
    fixed = {n for v in inputs if v.spread is None for n in v.shape}
    others = sorted(free - fixed - {size})
    return s.rng.choice(others) if others and s.chance(0.1) else size


def _second(
    s: Sketch, model: onnx.ModelProto, inputs: Sequence[Value], size: int | None
) -> list[Feeds]:
    """Return feeds of further runs: other values, and other shapes if axes are symbolic."""
    sizes = [size] if size is None else [s.size(11), size + 1, size]
    for other in sizes:
        feeds: dict[str, Array] = {}
        for value in inputs:
            shape = [
                other if other is not None and n == size and value.spread else n
                for n in value.shape
            ]
            # Several axes may have the same size.
            if int(np.prod(shape, dtype=np.float64)) > s.max_elements:
                break
            if value.spread is None:
                feeds[value.name] = value.array
            else:
                feeds[value.name] = draw(s.draws, value.dtype, tuple(shape), value.spread)
        mixed = any(value.spread is None and size in value.shape for value in inputs)
        complete = len(feeds) == len(inputs)
        if (
            complete
            and (other == size or not mixed)
            and is_valid(model, feeds, s.oracle, 2 * s.max_elements)
        ):
            return [feeds, {v.name: v.array for v in inputs}] if s.chance(0.2) else [feeds]
    return []


def is_valid(
    model: onnx.ModelProto,
    feeds: Mapping[str, Array],
    oracle: Oracle,
    max_elements: int = 2 * LARGE_ELEMENTS,
) -> bool:
    """True when an oracle computes the model, and every result is defined and small enough."""
    defined = True

    def look(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> None:
        nonlocal defined
        defined = defined and not undefined(node, inputs)

    try:
        tensors = oracle.evaluate(model, feeds, look=look)
    except OracleError:
        return False
    small = all(np.size(array) <= max_elements for array in tensors.values())
    return defined and small and not any(_overflows(node, tensors) for node in model.graph.node)


def _overflows(node: onnx.NodeProto, tensors: Mapping[str, Array]) -> bool:
    """True when finite values overflow float16, which in vkmnn happens to outputs only."""
    made = [tensors[name] for name in node.output if name]
    read = [tensors[name] for name in read_names(node) if name]
    read = [array for array in read if array.dtype.kind == "f"]
    return any(a.dtype == np.float16 and not np.isfinite(a).all() for a in made) and all(
        np.isfinite(a).all() for a in read
    )
