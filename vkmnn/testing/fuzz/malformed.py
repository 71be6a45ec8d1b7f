"""The malformed mode: damaged models must be refused with typed errors, in little time and memory.

Mutated models go to worker processes, which load, plan and run them. An error that is not a
VkmnnError, a crash, a model that hangs or takes more than 10 s of processor time is a failure; what
a model may take of memory is limited to 1 GiB. The first model of each kind of failure is made
smaller, by leaving out mutations, and saved.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vkmnn
from vkmnn.testing.fuzz.hostile import save_starts
from vkmnn.testing.fuzz.options import Options
from vkmnn.testing.fuzz.ordeal import RAN, TYPED, UNTYPED

SLOW_S = 10.0
"""Processor time that a model may take."""

CRASHED, HUNG, SLOW = "crashed", "hung", "slow"

_START_S = 180.0
_TORMENTOR = "vkmnn.testing.fuzz.tormentor"
_MODELS_PER_PROCESS = 400
_ROOT = Path(__file__).resolve().parents[3]


class Worker:
    """A process that models are put through; a new one is started when it dies or gets old."""

    def __init__(self, timeout_s: float, starts: Path | None = None) -> None:
        self._starts = [] if starts is None else [str(starts)]
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
        self._served = 0

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Return what became of one model."""
        if self._process is None or self._served >= _MODELS_PER_PROCESS:
            self._stop()
            self._process, self._served = self._start(), 0
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        timeout = self._timeout_s + (_START_S if self._served == 0 else 0)
        self._served += 1
        try:
            process.stdin.write(json.dumps(command) + "\n")
            process.stdin.flush()
            ready = select.select([process.stdout], [], [], timeout)[0]
            line = process.stdout.readline() if ready else None
        except BrokenPipeError:
            line = ""
        if line:
            answer: dict[str, Any] = json.loads(line)
            if answer["seconds"] > SLOW_S:
                answer |= {"kind": SLOW, "place": answer["place"] or answer["error"]}
            return answer
        if line is None:
            process.kill()
        status = process.wait()
        process.stdin.close()
        process.stdout.close()
        self._process = None
        if line is None:
            return _answer(HUNG, f"no answer within {timeout:g} s", "")
        self._errors.seek(0)
        said = self._errors.read()[-3000:]
        places = [part.strip() for part in said.splitlines() if "/vkmnn/" in part]
        return _answer(CRASHED, f"the process ended with {status}", places[0] if places else said)

    def _start(self) -> subprocess.Popen[str]:
        self._errors.seek(0)
        self._errors.truncate()
        paths = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))
        return subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", _TORMENTOR, *self._starts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            encoding="utf-8",
            # More threads take more address space each, and gain nothing with such models.
            env={**os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1"},
        )

    def close(self) -> None:
        """End the process."""
        self._stop()
        self._errors.close()

    def _stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            assert self._process.stdout is not None
            self._process.stdin.close()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process.stdout.close()
            self._process = None


def _answer(kind: str, text: str, place: str) -> dict[str, Any]:
    return {"kind": kind, "error": "", "text": text, "place": place, "seconds": 0.0, "done": []}


@dataclass(slots=True)
class Tally:
    """What a run has found.

    Attributes:
        kinds: how many models ran, were refused, …
        errors: how many were refused with which error.
        caught: typed errors made from others that no check foresaw, by their place, with the number
            of the first model.
        failures: the first model of each kind and place of failure, and how many there are.
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
    """Return the devices that every model is put through."""
    if options.device == "cpu":
        return ["cpu"]
    if options.device != "auto":
        return ["cpu", options.device]
    return ["cpu", "auto"] if vkmnn.devices() else ["cpu"]


def torment(options: Options, starts: Path, jobs: int = 0) -> Tally:
    """Put models through until their number or the time is up.

    Args:
        options: how many, for how long, on which device.
        starts: what `save_starts` wrote.
        jobs: how many processes; 0 for one per processor.
    """
    devices = devices_of(options)
    end = time.monotonic() + 60 * options.minutes if options.minutes else None
    tally, lock, numbers = Tally(), threading.Lock(), iter(range(options.graphs or sys.maxsize))

    def work() -> None:
        worker = Worker(options.timeout_s, starts)
        try:
            while end is None or time.monotonic() < end:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    break
                answer = worker.ask(_command(options.seed, number, devices))
                with lock:
                    before = len(tally.failures)
                    tally.add(number, answer)
                    if len(tally.failures) > before:
                        _say(
                            f"model {number} {answer['kind']}: {answer['error']} at "
                            f"{answer['place'][-500:]}: {answer['text'][:300]}"
                        )
        finally:
            worker.close()

    threads = [threading.Thread(target=work) for _ in range(jobs or min(os.cpu_count() or 1, 4))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def _command(
    seed: int, number: int, devices: list[str], without: list[int] | None = None
) -> dict[str, Any]:
    return {"seed": seed, "number": number, "devices": devices, "without": without or []}


def run_malformed(options: Options) -> int:
    """Run models, print what was found, save what failed; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        starts = Path(folder) / "starts.json"
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
        path, done = _save_smaller(options, starts, key, numbers[0])
        kind, error, place = key
        _say(f"{kind}: {len(numbers)} x {error} at {place}: {tally.texts[key][:300]}")
        _say(f"  model {numbers[0]}: {' + '.join(done)}")
        _say(f"  python -m vkmnn.testing.fuzz --malformed --replay {path}")
    return 1 if tally.failures else 0


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.most_common()) or "nothing"


def _save_smaller(
    options: Options, starts: Path, key: tuple[str, str, str], number: int
) -> tuple[Path, list[str]]:
    """Leave out mutations as long as the model fails in the same way, and save it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    path = options.folder / f"malformed-{options.seed}-{number}.onnx"
    worker, devices = Worker(options.timeout_s, starts), devices_of(options)
    without: list[int] = []
    try:
        for place in range(4):
            answer = worker.ask(_command(options.seed, number, devices, [*without, place]))
            if (answer["kind"], answer["error"], answer["place"]) == key:
                without.append(place)
        command = _command(options.seed, number, devices, without)
        done: list[str] = worker.ask({**command, "save": str(path)})["done"]
    finally:
        worker.close()
    return path, done


def replay(options: Options, path: Path) -> int:
    """Put one saved model through; return the exit status."""
    worker = Worker(options.timeout_s)
    try:
        answer = worker.ask({"path": str(path), "devices": devices_of(options)})
    finally:
        worker.close()
    kind = answer["kind"]
    _say(f"{kind} {answer['error']} {answer['place']} {answer['seconds']:.2f} s")
    _say(answer["text"])
    return 1 if kind in (UNTYPED, CRASHED, HUNG, SLOW) else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
