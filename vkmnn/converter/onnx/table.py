"""Writes docs/operators.md: `python -m vkmnn.converter.onnx.table docs/operators.md`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from vkmnn.converter.onnx.model_file import MIN_OPSET
from vkmnn.converter.onnx.support import OpSupport, supported_ops, unsupported_ops

_HEAD = """# Operators

<!-- written by `python -m vkmnn.converter.onnx.table`; do not edit -->

The ONNX front end knows {count} of the {total} operators of ONNX (opset {opset}), and {contrib} of
onnxruntime's domain `com.microsoft`. A model may use opset {oldest} to {opset}.

- *direct*: a converter writes the operator in vkmnn's vocabulary.
- *function body*: ONNX defines the operator by others, and that definition is expanded.

Other operators run on the host, in onnxruntime or the onnx package's evaluator, and so do nodes
with values that are not dense tensors of float16, float32, float64, bool and integers of 8 to 64
bits ([how](decisions/host-nodes.md)); `unsupported="raise"` refuses them and lists all.

## Supported

| Operator | Domain | Opset | How |
|---|---|---|---|
"""

_MIDDLE = """
## On the host

| Operator | Why, or what instead |
|---|---|
"""

_TAIL = """
## Adding an operator

[Add an operator in two files](extending/operator.md) is about operators with a kernel of their own,
in vkmnn or as a plug-in package. An operator that others express needs one function. It takes a
`NodeContext` and emits ops of the vocabulary (`vkmnn.plugin.ops`). It stands in the module of its
family under `vkmnn/converter/onnx/`, or in one of yours that `vkmnn.load_plugin` loads:

```python
from vkmnn.plugin import NodeContext, converter, ops


@converter("GeluTimesTwo", domain="my.domain", since=1)
def gelu_times_two(node: NodeContext) -> None:
    x = node.input(0)
    gelu = node.emit("UnaryOp", [x], ops.UnaryAttrs("GELU"))
    two = node.constant(2.0, node.dtype(x))
    node.finish("BinaryOp", [gelu, two], ops.BinaryAttrs("MUL"))
```

`since` is the first opset that the function understands; the newest entry that is not above the
model's opset is used. Raise `node.unsupported(reason)` for a use that cannot be expressed.
"""


def operator_table() -> str:
    """Return the text of docs/operators.md for the installed onnx package."""
    from onnx import defs

    entries = supported_ops()
    missing = unsupported_ops()
    current = [entry for entry in entries if not entry.domain and _is_current(entry)]
    head = _HEAD.format(
        count=len(current),
        total=len(current) + len(missing),
        opset=defs.onnx_opset_version(),
        contrib=sum(entry.domain == "com.microsoft" for entry in entries),
        oldest=MIN_OPSET,
    )
    rows = "\n".join(_rows(entries))
    refused = "\n".join(f"| {name} | {reason} |" for name, reason in missing)
    return f"{head}{rows}\n{_MIDDLE}{refused}\n{_TAIL}"


def _is_current(entry: OpSupport) -> bool:
    from onnx import defs

    return defs.has(entry.name) and not defs.get_schema(entry.name).deprecated


def _rows(entries: tuple[OpSupport, ...]) -> Iterator[str]:
    for entry in entries:
        first = max(min(entry.versions), MIN_OPSET) if not entry.domain else min(entry.versions)
        yield f"| {entry.name} | {entry.domain or 'ai.onnx'} | {first}+ | {entry.how} |"


if __name__ == "__main__":
    import vkmnn.converter.onnx  # noqa: F401 - fills the registry

    os.environ["VKMNN_PLUGINS"] = "off"  # the page is about vkmnn alone
    Path(sys.argv[1]).write_text(operator_table(), encoding="utf-8")
