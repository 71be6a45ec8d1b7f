"""Evaluate lines of Python with MNN's modules, and write the results.

    python mnn_lines.py LINES.json RESULTS.json [together]

A line may consist of several statements; its last one is an expression. Lines run in processes of
their own, as some crash MNN, unless they are to run together.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import MNN
import MNN.cv
import MNN.expr
import MNN.nn
import MNN.numpy
import numpy


def plain(value: Any) -> Any:
    """Return a result as JSON."""
    if isinstance(value, MNN.expr.Var):
        if value.data_format == MNN.expr.NC4HW4:
            value = MNN.expr.convert(value, MNN.expr.NCHW)
        array = numpy.array(value.read())
        numbers = numpy.where(numpy.isfinite(array), array, numpy.nan_to_num(array)).reshape(-1)
        return {"type": array.dtype.name, "shape": list(array.shape), "data": numbers.tolist()}
    if isinstance(value, MNN.Tensor):
        value = numpy.array(value.getNumpyData())
        return {
            "type": value.dtype.name,
            "shape": list(value.shape),
            "data": value.ravel().tolist(),
        }
    if isinstance(value, MNN.CVMatrix):
        return {"matrix": value.read()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value if isinstance(value, int | float | str | type(None)) else str(value)


def evaluated(line: str) -> Any:
    """Return a line's result, or the name of its error and whether vkmnn typed it."""
    names = {
        "MNN": MNN, "F": MNN.expr, "np": MNN.numpy, "cv": MNN.cv, "nn": MNN.nn, "numpy": numpy,
    }  # fmt: skip
    *before, last = line.split("; ")
    try:
        for statement in before:
            exec(statement, names)  # noqa: S102 - lines of a test
        return plain(eval(last, names))  # noqa: S307 - the same
    except Exception as error:  # noqa: BLE001 - whatever a line raises is its result
        bases = [one.__name__ for one in type(error).__mro__]
        return {"error": type(error).__name__, "typed": "VkmnnError" in bases}
    finally:
        MNN.expr.lazy_eval(False)


def alone(line: str) -> Any:
    """Return a line's result in a process of its own."""
    source, target = os.pipe()
    child = os.fork()
    if not child:
        os.close(source)
        signal.alarm(20)
        with os.fdopen(target, "w") as file:
            json.dump(evaluated(line), file)
            file.flush()
        os._exit(0)
    os.close(target)
    with os.fdopen(source) as file:
        text = file.read()
    os.waitpid(child, 0)
    return json.loads(text) if text else {"error": "crash", "typed": False}


evaluate = evaluated if sys.argv[3:] == ["together"] else alone
results = {line: evaluate(line) for line in json.loads(Path(sys.argv[1]).read_text("utf-8"))}
Path(sys.argv[2]).write_text(json.dumps(results), "utf-8")
