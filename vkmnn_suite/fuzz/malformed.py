"""The malformed mode: damaged models must be refused with typed errors, in little time and memory.

Mutated models are sent to worker processes, which load, plan and run them. An error that is not a
VkmnnError, a crash, a model that hangs or takes more than 10 s of processor time is a failure; a
model may use at most 1 GiB of memory. The first model of each kind of failure is reduced, by
leaving out mutations, and saved.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vkmnn
from vkmnn_suite.fuzz.child import TORMENTOR, Child, ChildCrashedError, ChildHungError
from vkmnn_suite.fuzz.files import make_damaged
from vkmnn_suite.fuzz.hostile import save_starts
from vkmnn_suite.fuzz.options import Options
from vkmnn_suite.fuzz.ordeal import RAN, TYPED, UNTYPED

SLOW_S = 10.0
"""Maximum processor time of a model."""

CRASHED, HUNG, SLOW = "crashed", "hung", "slow"

_MODELS_PER_PROCESS = 400
_ENVIRONMENT = {
    # More threads use more address space, and gain nothing with such models.
    "OPENBLAS_NUM_THREADS": "1",
    # Endless loops are stopped, and a device that does not finish is lost.
    "VKMNN_TIMEOUT": "5",
    # onnxruntime is native code, which damaged models are known to crash.
    "VKMNN_HOST_ENGINE": "onnx",
}


def new_child(timeout_s: float, starts: Path | None = None) -> Child:
    """Return a process that runs models."""
    return Child(TORMENTOR, str(starts or ""), timeout_s, _ENVIRONMENT)


def put_through(child: Child, command: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of one model; the process is restarted when it is old."""
    if child.asked >= _MODELS_PER_PROCESS:
        child.close()
    try:
        (answer,) = child.ask(command)
    except ChildHungError as error:
        return _answer(HUNG, error.message, "")
    except ChildCrashedError as error:
        places = [part.strip() for part in error.said.splitlines() if "/vkmnn/" in part]
        return _answer(CRASHED, error.message, places[0] if places else error.said)
    if answer["seconds"] > SLOW_S:
        answer |= {"kind": SLOW, "place": answer["place"] or answer["error"]}
    return answer


def _answer(kind: str, text: str, place: str) -> dict[str, Any]:
    return {"kind": kind, "error": "", "text": text, "place": place, "seconds": 0.0, "steps": []}


@dataclass(slots=True)
class Tally:
    """The findings of a run.

    Attributes:
        kinds: how many models ran, were refused, …
        errors: how many were refused with which error.
        caught: typed errors raised from others that no check foresaw, by their location, with the
            number of the first model.
        failures: the first model of each kind and location of failure, and how many there are.
    """

    kinds: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    caught: dict[str, list[int]] = field(default_factory=dict)
    failures: dict[tuple[str, str, str], list[int]] = field(default_factory=dict)
    texts: dict[tuple[str, str, str], str] = field(default_factory=dict)

    def add(self, number: int, answer: dict[str, Any]) -> None:
        """Count one model."""
        self.kinds[answer["kind"]] += 1
        if answer["kind"] == TYPED:
            self.errors[answer["error"]] += 1
            if answer["place"]:
                self.caught.setdefault(answer["place"], []).append(number)
        elif answer["kind"] != RAN:
            key = (answer["kind"], answer["error"], answer["place"])
            self.failures.setdefault(key, []).append(number)
            self.texts.setdefault(key, answer["text"])


def devices_of(options: Options) -> list[str]:
    """Return the devices on which every model runs."""
    if options.device == "cpu":
        return ["cpu"]
    if options.device != "auto":
        return ["cpu", options.device]
    return ["cpu", "auto"] if vkmnn.devices() else ["cpu"]


def torment(options: Options, starts: Path) -> Tally:
    """Put models through until their number or the time is up.

    Args:
        options: how many models, for how long, on which device, in how many processes.
        starts: the file that `save_starts` wrote.
    """
    devices = devices_of(options)
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    tally, lock, numbers = Tally(), threading.Lock(), iter(range(options.graphs or sys.maxsize))

    def work() -> None:
        with new_child(options.timeout_s, starts) as child:
            while end is None or time.monotonic() < end:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    break
                answer = put_through(child, _command(options, number, devices))
                with lock:
                    before = len(tally.failures)
                    tally.add(number, answer)
                    if len(tally.failures) > before:
                        _say(
                            f"model {number} {answer['kind']}: {answer['error']} at "
                            f"{answer['place'][-500:]}: {answer['text'][:300]}"
                        )

    jobs = options.jobs or min(os.cpu_count() or 1, 4)
    threads = [threading.Thread(target=work) for _ in range(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def _command(
    options: Options, number: int, devices: list[str], without: list[int] | None = None
) -> dict[str, Any]:
    which = {"seed": options.seed, "number": number, "without": without or []}
    return {**which, "devices": devices, "files": [str(path) for path in options.starts]}


def run_malformed(options: Options) -> int:
    """Run models, print the findings, save failures; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        starts = Path(folder) / "starts.json"
        if options.starts:
            starts.write_text("[]", "utf-8")
        else:
            save_starts(starts)
        return _run(options, starts)


def _run(options: Options, starts: Path) -> int:
    start = time.monotonic()
    tally = torment(options, starts)
    seconds = time.monotonic() - start
    count = tally.kinds.total()
    _say(f"{count} models in {seconds:.0f} s: " + _listed(tally.kinds))
    _say(f"refused with {_listed(tally.errors)}")
    if tally.caught:
        _say("typed, but by no check of their own:")
        for place, numbers in sorted(tally.caught.items(), key=lambda item: -len(item[1])):
            _say(f"  {len(numbers):5} x {place} (first model {numbers[0]})")
    for key, numbers in tally.failures.items():
        path, steps = _save_smaller(options, starts, key, numbers[0])
        kind, error, place = key
        _say(f"{kind}: {len(numbers)} x {error} at {place}: {tally.texts[key][:300]}")
        _say(f"  model {numbers[0]}: {' + '.join(steps)}")
        _say(f"  python -m vkmnn_suite.fuzz --malformed --replay {path}")
    return 1 if tally.failures else 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing"


def _save_smaller(
    options: Options, starts: Path, key: tuple[str, str, str], number: int
) -> tuple[Path, list[str]]:
    """Leave out mutations as long as the model fails in the same way, and save it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"malformed-{options.seed}-{number}.onnx"
    if options.starts:
        path = path.with_suffix(make_damaged(options.seed, number, options.starts)[1])
    devices = devices_of(options)
    without: list[int] = []
    with new_child(options.timeout_s, starts) as child:
        for place in range(4):
            answer = put_through(child, _command(options, number, devices, [*without, place]))
            if (answer["kind"], answer["error"], answer["place"]) == key:
                without.append(place)
        command = _command(options, number, devices, without)
        steps: list[str] = put_through(child, {**command, "save": str(path)})["steps"]
    return path, steps


def replay(options: Options, path: Path) -> int:
    """Put one saved model through; return the exit status."""
    with new_child(options.timeout_s) as child:
        answer = put_through(child, {"path": str(path), "devices": devices_of(options)})
    kind = answer["kind"]
    _say(f"{kind} {answer['error']} {answer['place']} {answer['seconds']:.2f} s")
    _say(answer["text"])
    return 1 if kind in (UNTYPED, CRASHED, HUNG, SLOW) else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
