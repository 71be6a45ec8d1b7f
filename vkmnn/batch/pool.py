"""Sessions of one model on several devices: `SessionPool(model).map(items)`."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Literal

from vkmnn.base.closing import Closing
from vkmnn.batch.flow import Failed, Flow, Work
from vkmnn.batch.stacking import Fed, Stacking
from vkmnn.errors import InvalidInputError, nearest
from vkmnn.inference_session import InferenceSession
from vkmnn.ir import Array
from vkmnn.runtime.device import enumerate_devices
from vkmnn.runtime.device_info import DeviceType

OnError = Literal["raise", "keep"]
Devices = str | int | Sequence[str | int]
_ON_ERROR = ("raise", "keep")
_MOST = 4096


def selected_devices(devices: Devices, driver: str | None = None) -> list[str | int]:
    """Return what to open a session on, for each device.

    Args:
        devices: "all" (software devices only if there are no others), a device, or a list of them;
            a device is named as for `InferenceSession`.
        driver: the Vulkan binding.

    Raises:
        InvalidInputError: the list is empty.
    """
    if isinstance(devices, str) and devices == "all":
        found = enumerate_devices(driver)
        hardware = [one for one in found if one.type is not DeviceType.CPU]
        return [one.index for one in hardware or found[:1]] or ["auto"]
    listed = [devices] if isinstance(devices, str | int) else list(devices)
    if not listed:
        raise InvalidInputError("the list of devices is empty", hint='write devices="all"')
    return listed


def decode_threads() -> int:
    """Return how many threads prepare items: one per processor, 16 at most."""
    return min(os.cpu_count() or 1, 16)


def checked_count(name: str, value: Any) -> int:
    """Return a number from 1 to 4096.

    Raises:
        InvalidInputError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MOST:
        raise InvalidInputError(f"{name}={value!r} is not a whole number from 1 to {_MOST}")
    return value


class SessionPool(Closing):
    """Sessions on several devices that share the items of `map`.

    Args:
        model: as for `InferenceSession`.
        devices: "all", a device, or a list of devices; software devices are part of "all" only if
            there are no others.
        output_names: the outputs to return; None for all.
        options: further arguments of `InferenceSession`, such as `precision`.

    Attributes:
        sessions: the sessions, in the order of the devices.
        output_names: the names of the returned outputs.
        stacking: joins items to runs.

    Raises:
        VkmnnError: as `InferenceSession`; InvalidInputError, the list of devices is empty.
    """

    def __init__(
        self,
        model: Any,
        devices: Devices = "all",
        *,
        output_names: Sequence[str] | None = None,
        **options: Any,
    ) -> None:
        self.sessions: list[InferenceSession] = []
        self._closed = False
        try:
            for device in selected_devices(devices, options.get("driver")):
                self.sessions.append(InferenceSession(model, device, **options))
            outputs = {arg.name: arg for arg in self.sessions[0].get_outputs()}
            self.output_names = _checked_names(output_names, outputs)
        except BaseException:
            self.close()
            raise
        wanted = [outputs[name] for name in self.output_names]
        self.stacking = Stacking(self.sessions[0].get_inputs(), wanted)

    @property
    def can_batch(self) -> bool:
        """Whether items can share a run: inputs and outputs have the same dynamic first axis."""
        return self.stacking.possible

    def map(
        self,
        items: Iterable[Any],
        batch: int = 1,
        *,
        prepare: Callable[[Any], Any] | None = None,
        ordered: bool = True,
        in_flight: int = 2,
        on_error: OnError = "raise",
        pairs: bool = False,
    ) -> Iterator[Any]:
        """Yield the outputs of each item; the next items are prepared and run meanwhile.

        Items are read as results are consumed: the number of items in memory is bounded.

        Args:
            items: feeds as for `InferenceSession.run`; or feeds of one sample, without the first
                axis, which then gets outputs without it.
            batch: most items in one run, if `can_batch`; other networks run them one by one.
                The last run may be smaller.
            prepare: turns an item into its feeds; called in several threads at once.
            ordered: yield results in the order of the items, or as they are finished.
            in_flight: number of runs submitted to a device at a time.
            on_error: "raise" the error of an item, or "keep" it: yield `Failed(item, error)`.
            pairs: yield (item, result) instead of the result.

        Yields:
            A list of arrays, in the order of the output names.

        Raises:
            InvalidInputError: an argument is not valid, or the pool is closed.
            VkmnnError: the error of an item, with "raise"; a device is lost.
        """
        batch, in_flight = checked_count("batch", batch), checked_count("in_flight", in_flight)
        if on_error not in _ON_ERROR:
            raise InvalidInputError(f"on_error={on_error!r} is not known", hint='"raise" or "keep"')
        if self._closed:
            raise InvalidInputError("the pool is closed", hint="open another one")
        if not isinstance(items, Iterable):
            raise InvalidInputError(f"items are an iterable, not {type(items).__name__}")
        flow = Flow(self._work(batch, in_flight, prepare), ordered)
        return _results(flow.outcomes(items), on_error, pairs)

    def _work(self, batch: int, in_flight: int, prepare: Callable[[Any], Any] | None) -> Work:
        stacking = self.stacking

        def fed(item: Any) -> Fed:
            return stacking.fed(item if prepare is None else prepare(item))

        def alike(value: Fed) -> Hashable:
            return stacking.alike(value)

        def lane(session: InferenceSession) -> Callable[[list[Fed]], list[list[Array]]]:
            def run(group: list[Fed]) -> list[list[Array]]:
                outputs = session.submit(stacking.joined(group), self.output_names).result()
                return stacking.split(group, outputs)

            return run

        return Work(
            prepare=fed,
            alike=alike,
            lanes=[lane(session) for session in self.sessions],
            batch=batch if stacking.possible else 1,
            in_flight=in_flight,
            threads=0 if prepare is None else decode_threads(),
            is_open=lambda: not self._closed,
        )

    def close(self) -> None:
        """Close the sessions; iterators of `map` raise InvalidInputError from then on."""
        self._closed = True
        for session in self.sessions:
            session.close()

    def __repr__(self) -> str:
        """Return the devices."""
        return f"<vkmnn.SessionPool on {', '.join(one.device.name for one in self.sessions)}>"


def _checked_names(names: Sequence[str] | None, outputs: Iterable[str]) -> list[str]:
    known = list(outputs)
    if isinstance(names, str):
        raise InvalidInputError(f"output_names is a list, not {names!r}", hint=f"write ['{names}']")
    for name in names or ():
        if name not in known:
            hint = nearest(name, known, "outputs")
            raise InvalidInputError(f"the network has no output '{name}'", hint=hint)
    return list(names or known)


def _results(outcomes: Iterator[tuple[Any, Any]], on_error: OnError, pairs: bool) -> Iterator[Any]:
    try:
        for item, outcome in outcomes:
            if isinstance(outcome, Failed) and on_error == "raise":
                raise outcome.error
            yield (item, outcome) if pairs else outcome
    finally:
        close = getattr(outcomes, "close", None)
        if close is not None:
            close()
