"""Where the onnx package's node cases run: `python -m tests.onnx_placement docs/onnx-cases.md`.

It runs every case on the default device, and lists those that do not run wholly there, with
reasons.
"""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import vkmnn.onnx_backend as backend
from tests.onnx_cases import as_array, node_cases
from vkmnn.errors import VkmnnError

# Groups of reasons, by a part of their text; the first match counts.
KINDS = (
    ("float64", "float64: devices compute with 32 bits"),
    ("outside int32", "integers beyond 32 bits"),
    ("beyond the 32 bits", "integers beyond 32 bits"),
    ("control flow", "control flow that depends on data"),
    ("random numbers", "random numbers: what is recorded is one draw"),
    ("no sequences", "sequences, optionals or strings"),
    ("no counterpart", "sequences, optionals or strings"),
    ("Pillow", "images in files: the evaluators on the host need Pillow"),
    ("ai.onnx.ml", "classical machine learning, `ai.onnx.ml`"),
    ("ai.onnx.preview", "operators in preview"),
    ("not constant", "parameters that are inputs of the model"),
    ("not a constant", "parameters that are inputs of the model"),
    ("no converter", "operators without a kernel"),
)
HEAD = """# ONNX's node tests

<!-- written by `python -m tests.onnx_placement docs/onnx-cases.md`; do not edit -->

The onnx package ({version}) contains {total:,} test cases of operators. {device:,} of them,
{share:.1f} %, run entirely on the device. The others run in part [on the
host](decisions/host-nodes.md): in numpy, in onnxruntime or in the onnx package's evaluator.
`tests/faces/test_onnx_backend.py` checks the results of these and of the package's other cases,
except for random numbers and images in files.

| Reason | Cases | Operators |
|---|---:|---|
"""


def reasons(case: Any) -> set[tuple[str, str]]:
    """Return (operator, reason) of whatever does not run on the device in a case."""
    names = [value.name for value in case.model.graph.input]
    try:
        rep = backend.prepare(case.model, "VULKAN")
        for inputs, _ in case.data_sets:
            fed = [x if isinstance(x, list) or x is None else as_array(x) for x in inputs]
            rep.run(dict(zip(names, fed, strict=False)))
        placed = rep.session.core.placement()
        rep.session.core.close()
    except VkmnnError as error:
        return {(case.model.graph.node[0].op_type, str(error))}
    return {(op.type, op.reason) for op in placed.off_device}


def kind(reason: str) -> str:
    """Return the group of a reason."""
    return next((text for part, text in KINDS if part in reason), re.sub(r"[|\n].*", "", reason))


def table(cases: Iterable[Any], version: str) -> str:
    """Return the page."""
    total, away = 0, 0
    counts: Counter[str] = Counter()
    operators: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        total += 1
        found = reasons(case)
        away += bool(found)
        kinds = {kind(reason) for _, reason in found}
        # One reason for each case: the first one in the list above.
        known = [text for _, text in KINDS if text in kinds] + sorted(kinds)
        counts.update(known[:1])
        for op, reason in found:
            if kind(reason) == known[0]:
                operators[known[0]].add(op.rpartition("::")[2])
    share = 100 * (total - away) / max(total, 1)
    head = HEAD.format(version=version, total=total, device=total - away, share=share)
    lines = [
        f"| {text} | {count} | {', '.join(sorted(operators[text]))} |"
        for text, count in counts.most_common()
    ]
    return head + "\n".join(lines) + "\n"


if __name__ == "__main__":
    import onnx

    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    pattern = re.compile(sys.argv[2] if len(sys.argv) > 2 else "")
    chosen = [case for case in node_cases() if pattern.search(case.name)]
    Path(sys.argv[1]).write_text(table(chosen, onnx.__version__), encoding="utf-8")
