"""A reader's view of an MNN op."""

from __future__ import annotations

from vkmnn.converter.nodes import (
    FLOAT,
    INT8,
    INT32,
    UINT8,
    Readers,
    Scope,
    SourceOp,
    lists_operators,
)
from vkmnn.errors import ModelError
from vkmnn.schema import Table, load_schema

SCHEMA = load_schema("mnn")
OP_TYPES = {number: name for name, number in SCHEMA.enums["OpType"].items()}

TYPES = {"DT_FLOAT": FLOAT, "DT_DOUBLE": FLOAT, "DT_HALF": FLOAT, "DT_BFLOAT16": FLOAT,
         "DT_INT32": INT32, "DT_INT64": INT32, "DT_BOOL": INT32, "DT_INT16": INT32,
         "DT_UINT16": INT32, "DT_UINT8": UINT8, "DT_INT8": INT8}  # fmt: skip
"""Run-time types of MNN's element types: it has no int64 and no booleans."""

STRUCTURAL = frozenset({"Input", "Const", "TrainableParam", "If", "While"})
"""Ops without a node; the model's reader handles them."""


@lists_operators("mnn")
def read_ops() -> dict[str, bool]:
    """Return every op that a file may have, and whether it is read."""
    return {name: name in READERS or name in STRUCTURAL for name in OP_TYPES.values()}


def enum_name(enum: str, number: int) -> str:
    """Return the name of an enumeration's member; "" if there is none."""
    members = SCHEMA.enums[enum]
    return next((name for name, value in members.items() if value == number), "")


class MnnOp(SourceOp):
    """An op of a file.

    Attributes:
        table: the op in the file.
        main: its parameters; None where it has none.
        weights: the file of weights next to the model; empty where there is none.
    """

    def __init__(
        self, scope: Scope, table: Table, inputs: list[str], outputs: list[str], weights: bytes
    ) -> None:
        kind = OP_TYPES.get(table.integer("type"), f"type {table.integer('type')}")
        super().__init__(scope, kind, table.text("name") or kind, inputs, outputs)
        self.table = table
        self.main = table.union("main")
        self.weights = weights

    def parameters(self, kind: str) -> Table:
        """Return the parameters, which have to be of a kind.

        Raises:
            ModelError: they are not.
        """
        if self.main is None or self.main.kind != kind:
            found = self.main.kind if self.main else "none"
            raise ModelError(f"it has parameters {found}, not {kind}", op=self.type, node=self.name)
        return self.main


READERS: Readers[MnnOp] = Readers("MNN")
reads = READERS.reads
