"""One model on vkmnn and on the oracle, and the result of the comparison."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from vkmnn.errors import UnsupportedOpError, VkmnnError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn_suite.fuzz.case import Case, Feeds
from vkmnn_suite.fuzz.compare import TRIALS, agree, agree_conditioned, noisy
from vkmnn_suite.fuzz.disputes import reason_of
from vkmnn_suite.fuzz.options import Options
from vkmnn_suite.fuzz.oracle import (
    MIXED,
    REFERENCE,
    RUNTIME,
    Oracle,
    OracleError,
    read_names,
)
from vkmnn_suite.fuzz.refusals import excuse

AGREES, REFUSED, DISPUTED = "agrees", "refused", "disputed"
WRONG, UNTYPED, UNEXCUSED = "wrong", "untyped error", "refused without excuse"
CRASHED, HUNG, UNSETTLED = "crashed", "hung", "unsettled dispute"
FAILURES = frozenset({WRONG, UNTYPED, UNEXCUSED, CRASHED, HUNG, UNSETTLED})

_NUMBERS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of a model.

    Attributes:
        kind: one of the words of this module.
        detail: the difference, or the error.
        op: the operator concerned, if known.
    """

    kind: str
    detail: str = ""
    op: str = ""

    @property
    def failed(self) -> bool:
        """True when something has to be mended."""
        return self.kind in FAILURES

    @property
    def signature(self) -> str:
        """A key that failures with the same cause usually share."""
        return f"{self.kind} {self.op} {_NUMBERS.sub('#', self.detail)[:60]}"


def check(case: Case, options: Options, oracle: Oracle) -> Verdict:
    """Run a model and compare all outputs of all runs."""
    try:
        results = _run(case, options)
    except UnsupportedOpError as error:
        reasons = "; ".join(node.reason for node in error.nodes)
        return _refusal(case, oracle, error, error.nodes[0].op, reasons)
    except VkmnnError as error:
        return _refusal(case, oracle, error, error.op or "", error.message)
    except Exception as error:  # noqa: BLE001 - any other exception is a finding
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('vkmnn/')[2]}:{last.lineno}"
        return Verdict(UNTYPED, f"{type(error).__name__} in {where}: {error}")
    for number, (feeds, outputs) in enumerate(zip(case.runs, results, strict=True)):
        verdict = _compare(case, feeds, outputs, oracle)
        if verdict is not None:
            detail = verdict.detail if not number else f"run {number + 1}: {verdict.detail}"
            return Verdict(verdict.kind, detail, verdict.op)
    return Verdict(AGREES)


_Way = Callable[[InferenceSession, Feeds], Sequence[Any]]

_WAYS: tuple[_Way, ...] = (
    lambda session, feeds: session.run(None, feeds),
    lambda session, feeds: session.submit(feeds).result(),
    lambda session, feeds: [np.array(one) for one in session.run_on_device(None, feeds)],
)
"""How a model can run; runs and models alternate."""


def _run(case: Case, options: Options) -> list[dict[str, Array]]:
    precision: Any = case.precision
    with InferenceSession(
        case.model,
        options.device,
        precision=precision,
        driver=options.driver,
        on_overflow="high",
    ) as session:
        names = [value.name for value in session.get_outputs()]
        runs = zip(case.runs, _ways(case.model), strict=False)
        return [dict(zip(names, run(session, feeds), strict=True)) for feeds, run in runs]


def _ways(model: onnx.ModelProto) -> Iterator[_Way]:
    """Yield ways to run a model, over and over; devices accept no strings and no sequences."""
    kinds = {value.type.tensor_type.elem_type for value in model.graph.output}
    ways = _WAYS[: 2 if kinds & {TensorProto.UNDEFINED, TensorProto.STRING} else 3]
    first = len(model.graph.node) % len(ways)
    return cycle((*ways[first:], *ways[:first]))


def _refusal(case: Case, oracle: Oracle, error: VkmnnError, op: str, message: str) -> Verdict:
    reason = excuse(error, message)
    if reason is not None:
        return Verdict(REFUSED, reason, op)
    return _disputed_shape(case, oracle) or Verdict(
        UNEXCUSED, f"{type(error).__name__}: {message}", op
    )


def _disputed_shape(case: Case, oracle: Oracle) -> Verdict | None:
    """Return the dispute about the shape of a node, on which the rest of the model may build."""
    opsets = {entry.domain: entry.version for entry in case.model.opset_import}
    disputed: list[Verdict] = []

    def look(node: onnx.NodeProto, inputs: Sequence[Array | None]) -> None:
        reason = reason_of(node, inputs)
        if reason is not None:
            sides = (oracle.node(node, opsets, inputs, who) for who in (RUNTIME, REFERENCE))
            if any(a.shape != b.shape for a, b in zip(*sides, strict=True)):
                disputed.append(Verdict(DISPUTED, reason, node.op_type))

    for feeds in case.runs:
        try:
            oracle.evaluate(case.model, feeds, look=look)
        except OracleError:
            continue
    return disputed[0] if disputed else None


def _compare(
    case: Case, feeds: Feeds, outputs: Mapping[str, Array], oracle: Oracle
) -> Verdict | None:
    """Compare one run, first as it is, then in the light of the model's conditioning."""
    try:
        expected = oracle.evaluate(case.model, feeds)
    except OracleError as error:
        return Verdict(UNSETTLED, f"the oracle cannot compute it: {error.message}")
    verdict: Verdict | None = None
    for name, difference in _unexplained(case, feeds, outputs, expected, oracle, RUNTIME).items():
        verdict = _judge(case, feeds, name, outputs[name], difference, oracle)
        if verdict.failed:
            break
    return verdict


def _judge(
    case: Case, feeds: Feeds, name: str, output: Array, difference: str, oracle: Oracle
) -> Verdict:
    """Return the verdict on an output that differs from the first oracle's."""
    other = _second_opinion(case, feeds, name, output, oracle)
    if other is None:
        return Verdict(WRONG, f"{name}: {difference}", _producer(case.model, name))
    node, inputs = other
    reason = reason_of(node, inputs)
    if reason is None:
        detail = f"{name}: {difference}; the reference evaluator agrees"
        return Verdict(UNSETTLED, detail, node.op_type)
    return Verdict(DISPUTED, reason, node.op_type)


def _unexplained(
    case: Case,
    feeds: Feeds,
    outputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    oracle: Oracle,
    prefer: str,
) -> dict[str, str]:
    """Return the outputs that differ by more than rounding errors do, and how."""
    differences = _differences(case.precision, outputs, expected)
    for count in TRIALS:
        if not differences:
            break
        trials = noisy(case.model, feeds, oracle, case.precision, prefer, count)
        differences = _differences(case.precision, outputs, expected, trials)
    return differences


def _differences(
    precision: str,
    outputs: Mapping[str, Array],
    expected: Mapping[str, Array],
    trials: Sequence[Mapping[str, Array]] = (),
) -> dict[str, str]:
    """Return the differences by output; those that the trials change do not count."""
    found = {}
    for name, array in outputs.items():
        noise = [trial[name] for trial in trials]
        difference = agree_conditioned(array, expected[name], noise, precision)
        if difference:
            found[name] = difference
    return found


def _producer(model: onnx.ModelProto, name: str) -> str:
    return next((node.op_type for node in model.graph.node if name in node.output), "")


def _second_opinion(
    case: Case, feeds: Feeds, name: str, output: Array, oracle: Oracle
) -> tuple[onnx.NodeProto, list[Array | None]] | None:
    """Return a node before an output that the oracles compute differently, and its inputs.

    The first with a known reason, otherwise the first. None if the second oracle disagrees with the
    output as well.
    """
    for who in (REFERENCE, MIXED):
        try:
            other = oracle.evaluate(case.model, feeds, who)
        except OracleError:
            continue
        if not _unexplained(case, feeds, {name: output}, other, oracle, who):
            break
    else:
        return None
    opsets = {entry.domain: entry.version for entry in case.model.opset_import}
    differing: list[tuple[onnx.NodeProto, list[Array | None]]] = []
    for node in _before(case.model, name):
        inputs = [other[read] if read else None for read in read_names(node)]
        first = oracle.node(node, opsets, inputs, RUNTIME)
        second = oracle.node(node, opsets, inputs, REFERENCE)
        if any(agree(a, b, case.precision) for a, b in zip(first, second, strict=True)):
            differing.append((node, inputs))
    # One that only rounds differently (an LSTM's sums) may precede the one that matters.
    return next((found for found in differing if reason_of(*found)), next(iter(differing), None))


def _before(model: onnx.ModelProto, name: str) -> list[onnx.NodeProto]:
    """Return the nodes that a tensor depends on, in their order."""
    needed, nodes = {name}, []
    for node in reversed(model.graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed.update(read_names(node))
    return nodes[::-1]


def describe(case: Case) -> str:
    """Return a model in a few lines."""
    lines = [f"opset {case.model.opset_import[0].version}, {case.origin}"]
    lines += [f"  input {name}: {_text(array)}" for name, array in case.runs[0].items()]
    for tensor in case.model.graph.initializer:
        lines.append(f"  constant {tensor.name}: {_text(onnx.numpy_helper.to_array(tensor))}")
    for node in case.model.graph.node:
        given = ", ".join(f"{a.name}={_attribute(a)}" for a in node.attribute)
        call = f"{node.op_type}({', '.join(node.input)}{', ' if given else ''}{given})"
        lines.append(f"  {', '.join(node.output)} = {call}")
    lines.append(f"  outputs: {', '.join(value.name for value in case.model.graph.output)}")
    return "\n".join(lines)


def _attribute(attribute: onnx.AttributeProto) -> str:
    value = onnx.helper.get_attribute_value(attribute)
    if isinstance(value, onnx.TensorProto):
        return _text(onnx.numpy_helper.to_array(value))
    if isinstance(value, onnx.GraphProto):
        return f"{{{', '.join(node.op_type for node in value.node)}}}"
    return value.decode() if isinstance(value, bytes) else str(value)


def _text(array: Array) -> str:
    values = np.array2string(array, threshold=12, edgeitems=2, separator=",").replace("\n", "")
    return f"{array.dtype}{list(array.shape)} {values[:100]}"
