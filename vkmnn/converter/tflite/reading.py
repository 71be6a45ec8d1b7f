"""Reads the operators of subgraphs."""

from __future__ import annotations

from vkmnn.converter.tflite.custom import CUSTOM_READERS
from vkmnn.converter.tflite.nodes import READERS, LiteOp
from vkmnn.converter.tflite.subgraph import Subgraph
from vkmnn.schema import Table

_DEEPEST = 16
_FLEX = "Flex"
_COMPLEX = ("COMPLEX_ABS", "EXPAND_DIMS", "IMAG", "REAL", "RESHAPE", "SQUEEZE")
"""Operators that read complex tensors."""


def read_subgraph(subgraph: Subgraph) -> None:
    """Read a subgraph's operators into its scope."""
    operators = subgraph.table.tables("operators")
    model = subgraph.model
    model.reading.count(len(operators))
    if model.depth >= _DEEPEST:
        raise model.buffer.fail("its subgraphs contain each other")
    model.depth += 1
    for table in operators:
        _operator(subgraph, table)
    model.depth -= 1


def _operator(subgraph: Subgraph, table: Table) -> None:
    kind = subgraph.model.operator(table.integer("opcode_index"))
    inputs, outputs = table.integers("inputs"), table.integers("outputs")
    name = subgraph.names[outputs[0]] if outputs else f"{subgraph.prefix}{kind.name}"
    subgraph.check([number for number in inputs if number != -1] + outputs)
    subgraph.constants(inputs)
    op = LiteOp(subgraph.scope, kind.name, name, table, subgraph, (inputs, outputs))
    subgraph.model.reading.meter.check_time(op.type, op.name)
    with subgraph.model.reading.operator(op):
        if kind.name not in _COMPLEX and any(op.is_complex(n) for n in range(len(inputs))):
            raise op.unreadable("complex numbers")
        if kind.custom:
            _custom(op)
        else:
            READERS.read(op)
    for number in outputs:
        subgraph.declare(number)


def _custom(op: LiteOp) -> None:
    if op.type.startswith(_FLEX):
        raise op.unreadable("it is TensorFlow's own: convert without SELECT_TF_OPS")
    CUSTOM_READERS.read(op)
