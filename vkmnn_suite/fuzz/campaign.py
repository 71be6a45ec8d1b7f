"""A run of the fuzzer: models by the thousand, in worker processes, and a report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from vkmnn_suite.fuzz import child as children
from vkmnn_suite.fuzz.case import Case
from vkmnn_suite.fuzz.check import CRASHED, DISPUTED, HUNG, Verdict, check, describe
from vkmnn_suite.fuzz.child import Child, ChildCrashedError, ChildHungError
from vkmnn_suite.fuzz.models import refuse_unknown
from vkmnn_suite.fuzz.options import Options
from vkmnn_suite.fuzz.oracle import Oracle, runtime
from vkmnn_suite.fuzz.report import Report
from vkmnn_suite.fuzz.shrink import shrink
from vkmnn_suite.fuzz.worker import encode

_MODELS_A_PROCESS = 500
_CRASH_PATIENCE_S = 60.0
_out = Console()


def run_campaign(options: Options) -> int:
    """Run models, print the report and return the exit status: 0 when nothing failed."""
    runtime()  # reports missing requirements before a process is started
    refuse_unknown(options.ops)
    report = campaign(options, _out)
    _out.print(report.text(), soft_wrap=True, highlight=False, markup=False)
    return 1 if report.failures else 0


def campaign(options: Options, out: Console | None = None) -> Report:
    """Run models until their number or the time is up; failures are shown at once."""
    report = Report(options)
    start = time.monotonic()
    number = 0
    while not _done(options, number, start):
        number = _batch(options, number, start, report, out)
    report.seconds = time.monotonic() - start
    return report


def _child(options: Options) -> Child:
    return Child(children.WORKER, encode(options), options.timeout_s)


def _done(options: Options, number: int, start: float) -> bool:
    minutes = (time.monotonic() - start) / 60
    return (options.graphs > 0 and number >= options.graphs) or (
        options.minutes > 0 and minutes >= options.minutes
    )


def _batch(options: Options, first: int, start: float, report: Report, out: Console | None) -> int:
    """Run models in one process; return the number of the next one."""
    stop = first + _MODELS_A_PROCESS
    if options.graphs:
        stop = min(stop, options.graphs)
    number, doing = first, "starting"
    with _child(options) as child:
        try:
            for answer in child.ask({"start": first, "stop": stop}):
                if "kind" not in answer:
                    doing, number = next(iter(answer.items()))
                    continue
                _show(report.add(answer), out)
                number += 1
                if _done(options, number, start):
                    break
            return number
        except (ChildCrashedError, ChildHungError) as error:
            kind = CRASHED if isinstance(error, ChildCrashedError) else HUNG
            detail = f"while {doing}: {error.message}"
    _show(report.add(_lost(options, number, Verdict(kind, detail))), out)
    return number + 1


def _lost(options: Options, number: int, verdict: Verdict) -> dict[str, Any]:
    """Return the answer for a model that crashed its process, after reducing it if possible.

    If it cannot even be generated again, the oracle crashed: vkmnn has not seen it.
    """
    answer: dict[str, Any] = {"kind": verdict.kind, "detail": verdict.detail, "op": ""}
    answer |= {"number": number, "ops": {}}
    path = options.folder / f"seed{options.seed}-{number}.onnx"
    try:
        with _child(options) as child:
            command = {"start": number, "stop": number + 1, "save": str(path)}
            list(child.ask(command))
    except (ChildCrashedError, ChildHungError):
        return answer | {"kind": DISPUTED, "op": "oracle", "detail": verdict.detail}

    def fails(case: Case) -> bool:
        case.save(path)
        return _replayed(options, path).kind == verdict.kind

    case = Case.load(path)
    if fails(case):
        case = shrink(case, fails, Oracle(), _CRASH_PATIENCE_S)
    case.save(path)
    return answer | {"file": str(path), "text": describe(case)}


def _replayed(options: Options, path: Path) -> Verdict:
    """Return the verdict on a saved case, determined in a separate process."""
    try:
        with _child(options) as child:
            *_, answer = child.ask({"replay": str(path)})
    except ChildCrashedError as error:
        return Verdict(CRASHED, error.message)
    except ChildHungError as error:
        return Verdict(HUNG, error.message)
    return Verdict(answer["kind"], answer["detail"], answer["op"])


def _show(text: str | None, out: Console | None) -> None:
    if text and out is not None:
        out.print(escape(text), soft_wrap=True, highlight=False)


def replay(options: Options, path: Path) -> int:
    """Run one saved case in this process, print the outcome and return the exit status."""
    case = Case.load(path)
    _out.print(escape(describe(case)), soft_wrap=True, highlight=False)
    verdict = check(case, options, Oracle())
    _out.print(escape(f"{verdict.kind} {verdict.op} {verdict.detail}"), soft_wrap=True)
    return 1 if verdict.failed else 0
