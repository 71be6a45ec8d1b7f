"""Signals at random points of a session's whole life, and devices lost over and over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vkmnn.runtime.device import enumerate_devices

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device"),
    pytest.mark.skipif(sys.platform != "linux", reason="needs setitimer and /proc"),
]

HEAD = """
import gc, logging, os, random, signal, sys, time
import numpy as np
import vkmnn
from vkmnn.runtime.device import open_device
logging.getLogger("vkmnn").setLevel("CRITICAL")
MODEL = "examples/digits/digits.onnx"

def images(count):
    return {"image": np.random.default_rng(count).random((count, 1, 8, 8), dtype=np.float32)}

def live():
    gc.collect()
    kept = ("pipelines", "pipeline_caches", "layouts")  # by the device
    return {name: n for name, n in open_device().stats().items() if name not in kept}

with vkmnn.InferenceSession(MODEL) as session:
    expected = {count: session.run(None, images(count))[0] for count in (1, 2, 3)}

def check(session, count):
    np.testing.assert_allclose(session.run(None, images(count))[0], expected[count], rtol=1e-4)
"""

STORM = """
sys.unraisablehook = lambda _: None  # Python tells of a Ctrl-C that hit a finalizer
before = live()
numbers = random.Random(0)
interrupts, lives = 0, 1
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGINT))

def life():
    with vkmnn.InferenceSession(MODEL) as session:
        check(session, 1)
        check(session, 2)
        if lives % 5 == 0 and "timestamps" in open_device().info.features:
            session.tune(images(2), runs=1)
            check(session, 2)
        check(session, 3)

start = time.monotonic()
life()
longest = time.monotonic() - start
end = time.monotonic() + 10
while time.monotonic() < end:
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, numbers.uniform(0.0005, longest))
            life()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupts += 1
    lives += 1
signal.signal(signal.SIGINT, signal.SIG_IGN)
life()
gc.collect()
vkmnn.InferenceSession(MODEL).close()  # retires what an interruption left
assert live() == before, (live(), before)
assert open_device().lost is None
print(interrupts, lives)
"""

LOSSES = """
def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

session = vkmnn.InferenceSession(MODEL, on_device_lost="rebuild")
sizes = []
for _ in range(9):
    check(session, 1)
    check(session, 2)
    lost = open_device()
    lost.mark_lost("for the test")
    check(session, 1)
    assert lost.closed and lost.stats() == {}
    sizes.append(resident())
print(*((size - sizes[2]) >> 10 for size in sizes))
"""


def run(code: str) -> list[int]:
    result = subprocess.run(
        [sys.executable, "-c", HEAD + code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    return [int(word) for word in result.stdout.split()]


@pytest.mark.soak
def test_ctrl_c_may_come_at_any_time() -> None:
    interrupts, lives = run(STORM)
    assert lives > 3
    assert interrupts > 3


def test_six_losses_take_no_memory_along() -> None:
    """A device of a software driver takes some 10 MB: none of six may stay."""
    kilobytes = run(LOSSES)
    assert len(kilobytes) == 9
    assert kilobytes[-1] < 24 << 10, kilobytes
