"""Runs all trials of a model, in a process that may crash or hang without ending the sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, reduce
from pathlib import Path
from typing import Literal

from vkmnn_suite.faults.library import Fault

Life = Literal["plain", "bound", "rebuild", "state", "text", "rebuilt text"]

TRIAL_S = 60.0
"""Seconds after which a trial counts as hung."""
_MAX_JOBS = 4


@dataclass(slots=True)
class Row:
    """Outcome of all trials with one fault: number of trials, of errors by class, violations."""

    fault: Fault
    trials: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)


def sweep(
    model: Path,
    faults: Sequence[Fault],
    *,
    tune: bool = False,
    fresh: bool = False,
    life: Life = "plain",
    stride: int = 1,
    limit: int = 0,
    trial_s: float = TRIAL_S,
) -> list[Row]:
    """Let every call of a session's life fail, one per trial, in each way.

    Args:
        model: an ONNX file, or the folder of a language model.
        faults: the ways.
        tune: also call `tune` in the life, which makes many more calls.
        fresh: create a new VkInstance for every trial.
        life: how the session runs: plainly; on device tensors, with `bind`, `submit` and
            `run_on_device`; with on_device_lost="rebuild"; with a decoder's state; or as a language
            model that generates sequences, also with on_device_lost="rebuild".
        stride: test only every `stride`-th call.
        limit: the last call to test; 0 for all.
        trial_s: seconds that a trial may take.
    """
    jobs = min(_MAX_JOBS, os.cpu_count() or 1)
    request = {"model": str(model.resolve()), "tune": tune, "fresh": fresh, "limit": limit}
    request["life"] = life
    rows = []
    with ThreadPoolExecutor(jobs) as pool:
        for fault in faults:
            # Each process tests different calls: every n-th, each starting at another one.
            asked = {**request, "fault": fault.name, "stride": stride * jobs}
            firsts = [1 + stride * number for number in range(jobs)]
            parts = pool.map(partial(_run_part, fault, asked, trial_s), firsts)
            rows.append(reduce(_joined, parts))
    return rows


def _run_part(fault: Fault, request: Mapping[str, object], trial_s: float, first: int) -> Row:
    row = Row(fault)
    at: int | None = first
    while at is not None:
        at = _run_child({**request, "first": at}, row, trial_s)
    return row


def _joined(one: Row, other: Row) -> Row:
    return Row(
        one.fault,
        one.trials + other.trials,
        one.errors + other.errors,
        one.violations + other.violations,
    )


def _run_child(request: dict[str, object], row: Row, trial_s: float) -> int | None:
    """Run trials until the child ends; return where to continue if that was too early."""
    code = "from vkmnn_suite.faults.sweep import serve; serve()"
    with tempfile.TemporaryFile("w+") as errors:
        child = subprocess.Popen(
            [sys.executable, "-c", code, json.dumps(request)],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, "VKMNN_TIMEOUT": "0.2" if row.fault is Fault.HANG else "60"},
        )
        assert child.stdout
        current, done = 0, False
        for line in _lines(child, trial_s):
            message = json.loads(line)
            if "start" in message:
                current = message["start"]
            elif "end" in message:
                done = True
            else:
                row.trials += 1
                row.errors[message["error"] or "made good"] += 1
                for text in message["violations"]:
                    row.violations.append(f"{row.fault.name} {current} ({message['call']}): {text}")
        status = child.wait()
        child.stdout.close()
        errors.seek(0)
        tail = errors.read()[-2000:].strip()
    if done and status == 0:
        return None
    how = "hangs" if status == -signal.SIGKILL else f"ends the process with {status}"
    row.violations.append(f"{row.fault.name} {current}: {how}: {tail}")
    return current + int(str(request["stride"])) if current else None


def _lines(child: subprocess.Popen[str], trial_s: float) -> Iterator[str]:
    """Yield the child's output; end the child if it writes nothing for too long."""
    assert child.stdout
    while True:
        timer = threading.Timer(trial_s, child.kill)
        timer.start()
        try:
            line = child.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            return
        yield line


def serve() -> None:
    """Act as the child: run the trials that the argument requests, and write their outcomes."""
    import logging
    import warnings

    from vkmnn_suite.faults.library import install

    request = json.loads(sys.argv[1])
    logging.getLogger("vkmnn").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore")
    # A finalizer that is interrupted finishes later; Python writes a message about it.
    sys.unraisablehook = lambda _: None
    library = install()
    from vkmnn_suite.faults.lives import LIVES

    fault = Fault[request["fault"]]
    trials = LIVES[request["life"]](
        library,
        Path(request["model"]),
        tune=request["tune"],
        fresh=request["fresh"],
    )
    count = trials.count(fault) + 1
    last = min(count, request["limit"]) if request["limit"] else count
    for at in range(request["first"], last + 1, request["stride"]):
        _say({"start": at})
        verdict = trials.run(fault, at)
        _say({"call": verdict.call, "error": verdict.error, "violations": verdict.violations})
    _say({"end": last})


def _say(message: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
