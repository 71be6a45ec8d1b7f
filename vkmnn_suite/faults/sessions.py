"""The lives of a session: plain, on device tensors, and with lost devices opened again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from vkmnn.core.session import Session
from vkmnn.errors import VkmnnError
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.runtime import DeviceInfo
from vkmnn_suite.faults.library import Fault
from vkmnn_suite.faults.trial import Trials

Feeds = dict[str, Array]


class Plain(Trials):
    """Opens, runs at two shapes, profiles and closes; symbolic dimensions are 1, then 2."""

    lost: Literal["raise", "rebuild"] = "raise"

    def _prepare(self) -> None:
        self._bytes = self._model.read_bytes()
        with InferenceSession(self._bytes) as session:
            self._feeds = [_feeds(session, dim) for dim in (1, 2)]
            self._expected = [session.run(None, feeds) for feeds in self._feeds]

    def _life(self, opened: list[Any], found: list[str], fault: Fault | None) -> None:
        session = InferenceSession(self._bytes, on_device_lost=self.lost)
        opened.append(session)
        if not isinstance(session.device, DeviceInfo) and fault is not Fault.INITIALIZATION:
            found.append("computed on the processor")
        for number in (0, 1, 0):
            self._compare(session, number, found)
        self._more(session, found)
        session.profile(self._feeds[0], runs=1)
        if self._tune:
            session.tune(self._feeds[0], runs=1)
            self._compare(session, 0, found)
        session.close()
        opened.clear()
        self._end()

    def _more(self, session: InferenceSession, found: list[str]) -> None:
        """Perform the additional steps of this life."""

    def _compare(self, session: InferenceSession, number: int, found: list[str]) -> None:
        self._check(session.run(None, self._feeds[number]), number, found)

    def _check(self, got: Sequence[Array], number: int, found: list[str]) -> None:
        if not _close(got, self._expected[number]):
            found.append("wrong data")

    def _check_usable(self, opened: Any, found: list[str]) -> None:
        """Run the session again, which must be right, unless its device is lost or closed."""
        gone = is_gone(opened._session.core)
        try:
            self._compare(opened, 1, found)
            self._compare(opened, 0, found)
            if gone:
                found.append("a lost device computes")
        except VkmnnError as error:
            if not gone:
                found.append(f"the session is unusable: {type(error).__name__}: {error}")

    def _check_anew(self, found: list[str]) -> None:
        with InferenceSession(self._bytes) as session:
            self._compare(session, 1, found)


class OnTensors(Plain):
    """Also on tensors that stay on the device: with `bind`, `run_on_device` and `submit`."""

    def _more(self, session: InferenceSession, found: list[str]) -> None:
        with session.bind(self._feeds[0]) as bound:
            for _ in range(2):
                made = [bound()[value.name].numpy() for value in session.get_outputs()]
                self._check(made, 0, found)
        kept = session.run_on_device(None, self._feeds[1])
        self._check([tensor.numpy() for tensor in kept], 1, found)
        for future in [session.submit(self._feeds[number]) for number in (0, 1, 0)]:
            future.result()


class Rebuilt(Plain):
    """Requests a new device if one is lost."""

    lost = "rebuild"


def is_gone(core: Session) -> bool:
    """Return whether a session may refuse to run: it is closed, or its device is lost or closed."""
    device = getattr(core._main, "device", None)
    if core.rebuilds or device is None:
        return core.closed
    return bool(device.lost or device.closed or core.closed)


def _close(got: Sequence[Array], expected: Sequence[Array]) -> bool:
    return all(
        np.allclose(have, want, rtol=1e-4, atol=1e-5, equal_nan=True)
        for have, want in zip(got, expected, strict=True)
    )


def _feeds(session: InferenceSession, dim: int) -> Feeds:
    numbers = np.random.default_rng(0)
    feeds: Feeds = {}
    for item in session.get_inputs():
        shape = tuple(size if isinstance(size, int) else dim for size in item.shape or ())
        dtype = session._inputs[item.name].dtype.numpy
        if dtype.kind == "f":
            feeds[item.name] = numbers.standard_normal(shape).astype(dtype)
        else:
            feeds[item.name] = np.zeros(shape, dtype)
    return feeds
