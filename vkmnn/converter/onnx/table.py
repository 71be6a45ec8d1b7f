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

vkmnn converts {count} of the {total} operators of ONNX (opset {opset}), and {contrib} operators of
onnxruntime's domain `com.microsoft`. A model may use opsets {oldest} to {opset}.

- *direct*: a converter emits the ops that compute the operator.
- *function body*: ONNX defines the operator in terms of others, and vkmnn expands the definition.

Other operators run [on the host](decisions/host-nodes.md), in onnxruntime or the onnx package's
evaluator; so do nodes whose values are not dense tensors of float16, float32, float64, bool or
integers of 8 to 64 bits. With `unsupported="raise"`, models with such nodes are refused, and the
error lists them all.

## Supported

| Operator | Domain | Opset | How |
|---|---|---|---|
"""

_MIDDLE = """
## On the host

| Operator | Reason, or alternative |
|---|---|
"""

_TAIL = """
## Adding an operator

[Add an operator in two files](extending/operator.md) describes operators with a kernel, in vkmnn or
in a plug-in package. An operator that existing ops can express needs only a converter: a function
that gets a `NodeContext` and emits ops (`vkmnn.plugin.ops`). It belongs in the module of its family
under `vkmnn/converter/onnx/`, or in a module of yours that `vkmnn.load_plugin` loads:

```python
from vkmnn.plugin import NodeContext, converter, ops


@converter("GeluTimesTwo", domain="my.domain", since=1)
def gelu_times_two(node: NodeContext) -> None:
    x = node.input(0)
    gelu = node.emit("UnaryOp", [x], ops.UnaryAttrs("GELU"))
    two = node.constant(2.0, node.dtype(x))
    node.finish("BinaryOp", [gelu, two], ops.BinaryAttrs("MUL"))
```

`since` is the first opset that the function supports. Of several converters, the one with the
largest `since` up to the model's opset is used. Raise `node.unsupported(reason)` for a use that
cannot be expressed.
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
