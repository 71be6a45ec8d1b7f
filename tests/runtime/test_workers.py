"""Each worker of Mesa's software device has its own processor; nothing else is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vkmnn.errors import InvalidInputError
from vkmnn.runtime import environment
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.drivers.vulkan.workers import workers_of

ROOT = Path(__file__).resolve().parents[2]

REPORT = """
import os, threading, time
from pathlib import Path
from vkmnn.runtime.device import open_device
threads = [threading.Thread(target=time.sleep, args=(60,), daemon=True) for _ in range(3)]
threads[0].start()
device = open_device("auto", validation=False)
threads[1].start()
helper = device.open_again()
threads[2].start()
tasks = {int(path.name): (path / "comm").read_text().strip()
         for path in Path("/proc/self/task").iterdir()}
print(sum(name.startswith("llvmpipe-") for name in tasks.values()))
python = {each.native_id for each in threading.enumerate()}
assert all(len(os.sched_getaffinity(task)) > 1 for task in python)
pinned = [os.sched_getaffinity(task) for task in tasks]
print(*sorted(min(each) for each in pinned if len(each) == 1))
helper.discard()
"""


def report(**changes: str) -> tuple[int, list[int]]:
    """Open a device in a process; return its number of workers, and their processors.

    Those of threads that may run on one alone.
    """
    if sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs Linux and two processors")
    if not any(info.name.startswith("llvmpipe") for info in enumerate_devices()):
        pytest.skip("the device is not Mesa's")
    names = ("VKMNN_PIN_WORKERS", "LP_NUM_THREADS")
    env = {name: value for name, value in os.environ.items() if name not in names}
    done = subprocess.run(
        [sys.executable, "-c", REPORT],
        cwd=ROOT,
        env={**env, **changes},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    count, *rest = done.stdout.splitlines()
    return int(count), [int(number) for number in rest[0].split()] if rest else []


def test_workers_are_apart() -> None:
    count, taken = report()
    allowed = sorted(os.sched_getaffinity(0))
    assert taken == (allowed if count == len(allowed) else [])


def test_fewer_workers_are_left_alone() -> None:
    """Several processes with one each would all have the same processor."""
    assert report(LP_NUM_THREADS="1") == (1, [])


def test_it_can_be_left_off() -> None:
    assert report(VKMNN_PIN_WORKERS="0")[1] == []


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKMNN_PIN_WORKERS", "maybe")
    with pytest.raises(InvalidInputError, match="VKMNN_PIN_WORKERS='maybe'"):
        environment.pin_workers()


RASTERIZERS = {11: "llvmpipe-0", 12: "llvmpipe-1"}


@pytest.mark.parametrize(
    ("others", "python", "workers"),
    [
        ({10: "app", 13: "app", 14: "app", 15: "app:disk$0"}, {10}, [13, 14]),
        ({10: "app", 13: "app", 14: "app", 15: "app", 16: "app"}, {10, 13}, [14, 15]),
        ({8: "app", 9: "app", 13: "app:disk$0"}, {8}, []),
        ({8: "app", 13: "app", 14: "app:disk$0"}, {8}, []),
        ({8: "app", 13: "app", 14: "app"}, {8, 14}, []),
    ],
)
def test_which_they_are(others: dict[int, str], python: set[int], workers: list[int]) -> None:
    assert workers_of({**others, **RASTERIZERS}, python) == workers
    assert workers_of(others, python) == []
