"""Generates and checks models in a separate process: `python -m vkmnn_suite.fuzz.worker OPTIONS`.

It reads a line of JSON for each range of models; for each model it writes two lines, before and
after.
"""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from vkmnn_suite.fuzz.case import Case
from vkmnn_suite.fuzz.check import Verdict, check, describe
from vkmnn_suite.fuzz.models import make_case
from vkmnn_suite.fuzz.options import Options, precision_of
from vkmnn_suite.fuzz.oracle import Oracle
from vkmnn_suite.fuzz.recipes.table import full_name
from vkmnn_suite.fuzz.shrink import shrink


def encode(options: Options) -> str:
    """Return options as one word of a command line."""
    return json.dumps({**asdict(options), "folder": str(options.folder)})


def decode(text: str) -> Options:
    """Return the object given to `encode`."""
    fields: dict[str, Any] = json.loads(text)
    folder, ops = Path(fields.pop("folder")), tuple(fields.pop("ops"))
    return Options(folder=folder, ops=ops, **fields)


def answers(options: Options, command: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Execute a command: "run" models of a range, "save" one, or "replay" a file."""
    oracle = Oracle()
    if "replay" in command:
        case = Case.load(Path(command["replay"]))
        yield {"running": case.origin}
        yield _verdict(check(case, options, oracle))
        return
    for number in range(command["start"], command["stop"]):
        yield {"making": number}
        case = make_case(options.seed, number, oracle, options.ops, options.large)
        case = replace(case, precision=precision_of(options, number))
        if command.get("save"):
            case.save(Path(command["save"]))
            yield {"saved": command["save"]}
            continue
        yield {"running": number}
        verdict = check(case, options, oracle)
        if verdict.failed:
            yield {"shrinking": number}
            case, verdict = smaller(case, verdict, options, oracle)
        ops = Counter(full_name(node.op_type, node.domain) for node in case.model.graph.node)
        answer = {**_verdict(verdict), "number": number, "ops": ops}
        if verdict.failed:
            path = options.folder / f"seed{options.seed}-{number}.onnx"
            case.save(path)
            answer |= {"file": str(path), "text": describe(case)}
        yield answer


def smaller(case: Case, verdict: Verdict, options: Options, oracle: Oracle) -> tuple[Case, Verdict]:
    """Return a smaller case that fails in the same way, and its verdict."""

    def fails(candidate: Case) -> bool:
        found = check(candidate, options, oracle)
        return (found.kind, found.op) == (verdict.kind, verdict.op)

    case = shrink(case, fails, oracle)
    return case, check(case, options, oracle)


def _verdict(verdict: Verdict) -> dict[str, Any]:
    return {"kind": verdict.kind, "detail": verdict.detail, "op": verdict.op}


def main() -> None:
    """Answer until the input ends."""
    options = decode(sys.argv[1])
    # A driver's output must not mix with the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answer_to:
        os.dup2(2, 1)
        for line in sys.stdin:
            for answer in answers(options, json.loads(line)):
                answer_to.write(json.dumps(answer) + "\n")
                answer_to.flush()
            answer_to.write(json.dumps({"done": True}) + "\n")
            answer_to.flush()


if __name__ == "__main__":
    main()
