"""Vars in files: `save`, `load_as_list` and `load_as_dict`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkmnn.errors import InvalidInputError, ModelError
from vkmnn.mnn.arrays import Array
from vkmnn.mnn.codes import ArgumentError, NoDataError, NotOfferedError
from vkmnn.mnn.expr import cells
from vkmnn.mnn.expr.types import NC4HW4, NCHW, data_format, dtype, numpy_type
from vkmnn.mnn.expr.values import to_var
from vkmnn.mnn.expr.var import Var
from vkmnn.schema import Schema, Table, load_schema, write

_STORED = {
    "float32": ("DT_FLOAT", "float32s"),
    "int32": ("DT_INT32", "int32s"),
    "uint8": ("DT_UINT8", "uint8s"),
    "int8": ("DT_INT8", "int8s"),
}
_TYPES = {"DT_FLOAT": dtype.float, "DT_INT32": dtype.int, "DT_UINT8": dtype.uint8,
          "DT_INT8": dtype.int8, "DT_INT64": dtype.int}  # fmt: skip
_KINDS = {"Const": cells.CONST, "TrainableParam": cells.TRAINABLE}


def save(vars: Sequence[Any], fileName: str | Path, forInference: bool = True) -> None:
    """Write Vars to a `.mnn` file: the data of those that have any, and placeholders.

    Args:
        vars: the Vars; `load_as_list` returns them in this order.
        fileName: the file.
        forInference: ignored: parameters are written as constants with it, and as parameters
            without.

    Raises:
        NotOfferedError: a Var is computed from a placeholder: vkmnn does not write operations.
        ArgumentError: a Var's type is none of MNN's files.
    """
    given = [to_var(one) for one in (vars if isinstance(vars, list | tuple) else [vars])]
    names = [one.name or f"{one.op_type}{number + 1}" for number, one in enumerate(given)]
    ops = [
        {"name": name, "outputIndexes": [number], **_op(one, forInference)}
        for number, (one, name) in enumerate(zip(given, names, strict=True))
    ]
    net = {"oplists": ops, "tensorName": names, "outputName": names, "tensorNumber": len(names)}
    Path(fileName).write_bytes(write(_schema(), net))


def _op(var: Var, plain: bool) -> dict[str, Any]:
    order = _enum("MNN_DATA_FORMAT", var.data_format.name)
    try:
        array = np.ascontiguousarray(var.read())
    except NoDataError as error:
        if var._cell.node is not None:
            raise NotOfferedError(
                "a Var that is computed from a placeholder cannot be saved",
                hint="save what it is computed from, or convert the network's ONNX file",
            ) from error
        kind, _ = _stored(np.dtype(numpy_type(var.dtype)))
        about = {"dims": var.shape, "dtype": _enum("DataType", kind), "dformat": order}
        return {"type": _enum("OpType", "Input"), "main": ("Input", about)}
    kind, field = _stored(array.dtype)
    trained = var.op_type == cells.TRAINABLE and not plain
    blob = {
        "dims": list(array.shape),
        "dataFormat": order if var.data_format != NC4HW4 else _enum("MNN_DATA_FORMAT", "NCHW"),
        "dataType": _enum("DataType", kind),
        field: array.reshape(-1),
    }
    name = "TrainableParam" if trained else "Const"
    return {"type": _enum("OpType", name), "main": ("Blob", blob)}


def _stored(kind: np.dtype[Any]) -> tuple[str, str]:
    if kind.name not in _STORED:
        raise ArgumentError(
            f"MNN's files hold no Vars of {kind}", hint="cast it to expr.float or expr.int"
        )
    return _STORED[kind.name]


def _enum(enum: str, name: str) -> int:
    return _schema().enums[enum][name]


def _name(enum: str, number: int) -> str:
    """Return the name of an enumeration's member; "" if there is none."""
    members = _schema().enums[enum]
    return next((name for name, value in members.items() if value == number), "")


def _schema() -> Schema:
    return load_schema("mnn")


def load_as_list(fileName: str | Path) -> list[Var]:
    """Return the results of a file's ops as Vars, in the file's order.

    Raises:
        ModelFileError: the file does not exist, or is none of MNN's.
    """
    return list(_loaded(fileName).values())


def load_as_dict(fileName: str | Path) -> dict[str, Var]:
    """Return the results of a file's ops as Vars, by their names.

    Write to the inputs, which are placeholders, and read the others; each is computed when it is
    read. Operations are those of the file, but their `inputs` are the network's.

    Raises:
        ModelFileError: the file does not exist, or is none of MNN's.
    """
    return _loaded(fileName)


def _loaded(path: str | Path) -> dict[str, Var]:
    from vkmnn.converter.mnn.front_end import MnnFrontEnd

    source = MnnFrontEnd().read(os.fspath(path))
    net = source.buffer.root()
    names = net.texts("tensorName")
    made: dict[str, Var] = {}
    read: set[str] = set()
    for table in net.tables("oplists"):
        kind = _name("OpType", table.integer("type"))
        read |= {names[number] for number in table.integers("inputIndexes") if number < len(names)}
        for number in table.integers("outputIndexes"):
            if not 0 <= number < len(names):
                raise ModelError(f"the file has no tensor {number}", op=kind)
            made[names[number]] = _var(kind, table, source.weights, names[number])
    inputs = {name: one for name, one in made.items() if one.op_type == cells.INPUT}
    computed = [name for name, one in made.items() if one.op_type not in (cells.INPUT, *_CONSTS)]
    for name in computed:
        made[name] = _lazy(
            made[name].op_type, _Runs(path, list(inputs), name, name in read), inputs
        )
        made[name].name = name
    return made


_CONSTS = tuple(_KINDS.values())


def _var(kind: str, table: Table, weights: bytes, name: str) -> Var:
    """Return the result of an op: its data, a placeholder, or a Var that only has its kind."""
    if kind in _KINDS:
        from vkmnn.converter.mnn.model import read_constant

        made = Var(read_constant(table, weights), name=name)
        made._cell.kind = _KINDS[kind]
        return made
    cell = cells.Cell(None, name=name, kind=kind)
    main = table.union("main")
    if kind == "Input" and main is not None:
        found = _name("DataType", main.integer("dtype") if main.has("dtype") else 1)
        cell.kind, cell.shape = cells.INPUT, tuple(main.integers("dims"))
        cell.dtype = numpy_type(_TYPES.get(found, dtype.float))
        order = _name("MNN_DATA_FORMAT", main.integer("dformat"))
        cell.format = data_format.__members__.get(order, NCHW)
    return Var._of(cell)


def _lazy(op: str, run: Callable[..., Array], inputs: dict[str, Var]) -> Var:
    node = cells.Node(op, run, [one._cell for one in inputs.values()], True)
    cell = cells.Cell(None, kind=op)
    cell.node = node
    return Var._of(cell)


class _Runs:
    """Computes one tensor of a file's network, which is opened with the first call.

    Attributes:
        inner: other ops of the network read the tensor.
    """

    def __init__(self, path: str | Path, inputs: list[str], output: str, inner: bool) -> None:
        self.path, self.inputs, self.output, self.inner = path, inputs, output, inner
        self.module: Any = None

    def __call__(self, *arrays: Array) -> Array:
        if self.module is None:
            from vkmnn.mnn.nn import open_module

            config = {"backend": "CPU", "saveTensors": (self.output,)}
            self.module = open_module(self.path, self.inputs, [self.output], config)
        (result,) = self.module.onForward(list(arrays))
        return np.asarray(result.read())


def get_inputs_and_outputs(allVariable: dict[str, Var]) -> tuple[dict[str, Var], dict[str, Var]]:
    """Return the placeholders among Vars, and those that no other one is computed from."""
    if not isinstance(allVariable, dict):
        raise InvalidInputError("expr.get_inputs_and_outputs takes what load_as_dict returns")
    read = {
        id(cell)
        for one in allVariable.values()
        for node in cells.ancestors(one._cell)
        for cell in node.inputs
    } | {id(one._cell) for one in allVariable.values() if _is_inner(one)}
    inputs = {name: one for name, one in allVariable.items() if one.op_type == cells.INPUT}
    outputs = {
        name: one
        for name, one in allVariable.items()
        if id(one._cell) not in read and one.op_type not in (cells.INPUT, *_CONSTS)
    }
    return inputs, outputs


def _is_inner(var: Var) -> bool:
    node = var._cell.node
    return node is not None and isinstance(node.function, _Runs) and node.function.inner


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "get_inputs_and_outputs": get_inputs_and_outputs,
    "load_as_dict": load_as_dict,
    "load_as_list": load_as_list,
    "save": save,
}
