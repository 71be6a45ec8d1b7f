"""Sessions at their end: of the main thread, of the interpreter, of the device, after a fork."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vkmnn.runtime.device import enumerate_devices

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not enumerate_devices(), reason="no Vulkan device")

HEAD = """
import atexit, gc, os, signal, sys, threading, time
import numpy as np
import vkmnn
from vkmnn.errors import InvalidInputError, VkmnnError
from vkmnn.runtime.device import open_device

MODEL = "examples/digits/digits.onnx"

def images(count):
    return {"image": np.full((count, 1, 8, 8), 0.5, np.float32)}

def work(session, count):
    (result,) = session.run(None, images(count))[:1]
    assert len(result) == count and np.ptp(result, axis=0).max() < 1e-6

session = vkmnn.InferenceSession(MODEL)
work(session, 1)
"""


def run(code: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HEAD + code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def succeeds(code: str, says: str = "") -> None:
    result = run(code)
    assert (result.returncode, result.stderr) == (0, "")
    assert says in result.stdout


WHATEVER = """
def whatever():
    work(session, 1)
    work(session, 2)
    with vkmnn.InferenceSession(MODEL) as fresh:
        work(fresh, 3)
        fresh.profile(images(3), runs=1)
    print("done")
"""


def test_a_thread_that_outlives_main_may_plan_and_open() -> None:
    succeeds(
        WHATEVER
        + """
def later():
    threading.main_thread().join()
    whatever()
threading.Thread(target=later).start()
""",
        says="done",
    )


def test_an_exit_handler_may_plan_and_open() -> None:
    succeeds(WHATEVER + "atexit.register(whatever)", says="done")


def test_an_exit_handler_from_before_vkmnn_may_open_anew() -> None:
    code = "import atexit; atexit.register(lambda: whatever())\n" + HEAD + WHATEVER
    code += "\nsession = None\nwork = lambda session, count: None\n"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "done" in result.stdout


def test_no_thread_can_be_started() -> None:
    succeeds(
        WHATEVER
        + """
def refuse(self):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
whatever()
""",
        says="done",
    )


@pytest.mark.parametrize("threads", [1, 4])
def test_the_interpreter_ends_while_daemon_threads_run(threads: int) -> None:
    succeeds(
        f"""
sessions = [session, *(vkmnn.InferenceSession(MODEL) for _ in range({threads - 1}))]
def forever(session):
    count = 1
    while True:
        work(session, count)
        count = count % 5 + 1
for one in sessions:
    threading.Thread(target=forever, args=(one,), daemon=True).start()
time.sleep(0.3)
"""
    )


def test_closing_the_device_waits_for_running_calls() -> None:
    succeeds(
        """
results = []
def until_closed(session):
    try:
        while True:
            work(session, 1 + len(results) % 5)
            results.append(1)
    except InvalidInputError as error:
        assert "has been closed" in str(error), error
        results.append("closed")
for _ in range(3):
    sessions = [vkmnn.InferenceSession(MODEL) for _ in range(4)]
    before = len(results)
    threads = [threading.Thread(target=until_closed, args=(one,)) for one in sessions]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    while len(results) == before:
        time.sleep(0.001)
    open_device().close()
    for thread in threads:
        thread.join()
    for one in sessions:
        one.close()
assert results.count("closed") == 12 and len(results) > 12
with vkmnn.InferenceSession(MODEL) as fresh:
    work(fresh, 2)
"""
    )


def test_a_call_cannot_close_the_device_that_it_uses() -> None:
    succeeds(
        """
import pytest
def progress(done, total):
    open_device().close()
closing = vkmnn.InferenceSession(MODEL, progress=progress)
with pytest.raises(InvalidInputError, match="inside a call"):
    work(closing, 1)
work(session, 1)
"""
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_an_inherited_session_is_refused_at_once(busy: bool) -> None:
    succeeds(
        f"""
import warnings
warnings.simplefilter("ignore")  # Python warns of forks beside threads
stop = threading.Event()
def forever():
    while not stop.is_set():
        work(session, 1)
thread = threading.Thread(target=forever, daemon=True)
if {busy}:
    thread.start()
    time.sleep(0.1)
device = open_device()
interpreter = vkmnn.Interpreter.from_file(MODEL)
made = interpreter.create_session()
image = interpreter.get_session_input(made)
interpreter.resize_tensor(made, image, (1, 1, 8, 8))
interpreter.resize_session(made)
image.copy_from(images(1)["image"])
interpreter.run_session(made)
for _ in range({5 if busy else 1}):
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        for call in (lambda: work(session, 1), lambda: work(session, 9),
                     lambda: session.profile(images(1)), lambda: session.tune(images(1))):
            try:
                call()
            except InvalidInputError as error:
                assert "parent process" in str(error)
            else:
                os._exit(3)
        session.close()
        for call in (lambda: interpreter.resize_session(made), lambda: made.run(images(1)),
                     lambda: interpreter.run_session(made)):
            try:
                call()
            except InvalidInputError as error:
                assert "parent process" in str(error)
            else:
                os._exit(4)
        made.close()
        device.close()
        with vkmnn.InferenceSession(MODEL) as fresh:
            work(fresh, 2)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
if {busy}:
    thread.join()
work(session, 1)
session.close()
"""
    )


def test_unwanted_are_destroyed() -> None:
    """Nothing of a lost device is left once its session is closed; the driver's threads end."""
    succeeds(
        """
import logging
logging.getLogger("vkmnn").setLevel("CRITICAL")
from vkmnn.runtime.device import _unwanted
def threads():
    return len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
def settled(most):
    # Threads that have been joined are listed until the system has cleared them away.
    end = time.monotonic() + 20
    while threads() > most and time.monotonic() < end:
        time.sleep(0.05)
    return threads()
session.close()
work(session := vkmnn.InferenceSession(MODEL), 1)
time.sleep(0.5)
before = threads()
for how in ("close", "forget", "close", "two", "close", "forget"):
    device = open_device()
    other = vkmnn.InferenceSession(MODEL) if how == "two" else None
    if other:
        work(other, 1)
    device.mark_lost("for the test")
    try:
        work(session, 1)
    except VkmnnError as error:
        assert "is lost" in str(error)
    else:
        raise AssertionError
    if how != "forget":
        session.close()
    if other:
        assert not device.closed
        other.close()
    session = vkmnn.InferenceSession(MODEL)
    vkmnn.InferenceSession(MODEL).close()
    assert device.closed and device.stats() == {}, (how, device.stats())
    assert not _unwanted
    work(session, 1)
assert settled(before) <= before, (threads(), before)
session.close()
"""
    )


ENDLESS = '''
os.environ["VKMNN_TIMEOUT"] = "1"
import logging
logging.getLogger("vkmnn").setLevel("CRITICAL")
spin = vkmnn.shader("""
{{ local_size(1) }}
{{ tensor_in("x", "f32") }}
{{ tensor_inout("y", "f32") }}
{% include "include/common.glsl.j2" %}

void main()
{
    for (uint i = 0; i < 60000; i++)
        y_store(0, y_load(0) * 0.5 + x_load(0));
}
""")
def endless():
    try:
        groups = (65535, 65535, 1)  # llvmpipe leaves a loop after 65,536 rounds
        spin(np.ones(1, np.float32), np.zeros(1, np.float32), groups=groups)
    except vkmnn.errors.DeviceLostError as error:
        assert "did not finish within" in str(error)
    else:
        raise AssertionError
open_device().close()
'''


@pytest.mark.parametrize(
    "afterwards",
    [
        "endless(); print('lost')",
        "endless(); vkmnn.runtime.device.retire_unwanted(); print('lost')",
    ],
    ids=["at once", "retired"],
)
def test_the_end_does_not_wait_for_a_device_that_hangs(afterwards: str) -> None:
    """Its driver has threads that never end, so that its instance is left to the system, too."""
    pytest.importorskip("jinja2", reason="the extra 'codegen' is not installed")
    result = run(ENDLESS + afterwards, timeout=60)
    assert (result.returncode, result.stderr, result.stdout) == (0, "", "lost\n")


# A driver that is slow to open devices, and reports if one is opened after it was closed.
SLOW = """
from vkmnn.runtime import device as devices
from vkmnn.runtime.drivers.vulkan_driver import VulkanDriver
inside, closed = threading.Event(), threading.Event()
real_open, real_close = VulkanDriver.open, VulkanDriver.close

def slow_open(self, *arguments, **more):
    inside.set()
    time.sleep(0.3)
    if closed.is_set():
        os.write(2, b"opened after the end")
    return real_open(self, *arguments, **more)

def close(self):
    closed.set()
    real_close(self)

VulkanDriver.open, VulkanDriver.close = slow_open, close
session.close()
open_device().close()
"""


def test_daemon_threads_may_open_devices_while_the_interpreter_ends() -> None:
    succeeds(
        SLOW
        + """
def opens():
    while True:
        open_device().close()
for _ in range(4):
    threading.Thread(target=opens, daemon=True).start()
inside.wait()
"""
    )


def test_a_device_is_ended_once() -> None:
    """Threads that retire lost devices, and the end of the interpreter, may meet at one of them."""
    succeeds(
        """
import logging
logging.getLogger("vkmnn").setLevel("CRITICAL")
from vkmnn.runtime import device as devices
for turn in range(20):
    device = open_device()
    device.mark_lost("for the test")
    device.mark_lost("for the test")
    assert list(devices._unwanted).count(device) == 1
    start = threading.Barrier(3)
    failed = []
    def ends(call):
        start.wait()
        try:
            call()
        except BaseException as error:
            failed.append(repr(error))
    calls = [lambda: device.end(5), lambda: device.end(5), devices.retire_unwanted]
    threads = [threading.Thread(target=ends, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert not devices._unwanted
session = None
"""
    )
