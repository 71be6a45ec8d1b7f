"""The timeline of one run of a plan, and its trace for Perfetto."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vkmnn.base.records import dataclass

if TYPE_CHECKING:
    from vkmnn.core.backend import Segment, Timing

PYTHON = "Python"
CALLS = "submit and wait"


@dataclass(frozen=True, slots=True)
class Span:
    """An interval of a run, in microseconds from the start of the run.

    `track` is the busy part: "Python", "submit and wait", or the type of a backend. `step` is the
    index of the step among the profile's entries; None for other intervals.
    """

    track: str
    name: str
    start_us: float
    microseconds: float
    step: int | None = None

    @property
    def end_us(self) -> float:
        """The end time."""
        return self.start_us + self.microseconds


def timeline(
    segments: Sequence[tuple[str, Segment]], start_us: float, end_us: float
) -> tuple[Span, ...]:
    """Return the spans of the last run of a plan, sorted by start time.

    Args:
        segments: the plan's segments with the types of their backends, in running order.
        start_us: when the run started, on the clock of `time.perf_counter_ns`.
        end_us: when it ended.
    """
    spans: list[Span] = []
    now = start_us
    step = 0
    for track, segment in segments:
        timings, calls = segment.timings(), segment.calls()
        busy = calls or timings
        if not busy:
            continue
        name = "hand over" if spans else "write inputs"
        spans.append(Span(PYTHON, name, now - start_us, busy[0].start_us - now))
        spans += [Span(CALLS, c.name, c.start_us - start_us, c.microseconds) for c in calls]
        spans += _steps(track, timings, start_us, step)
        step += len(timings)
        now = busy[-1].start_us + busy[-1].microseconds
    spans.append(Span(PYTHON, "read outputs", now - start_us, end_us - now))
    return tuple(sorted(spans, key=lambda span: span.start_us))


def _steps(track: str, timings: Sequence[Timing], start_us: float, first: int) -> list[Span]:
    return [
        Span(track, timing.op or timing.kernel, timing.start_us - start_us, timing.microseconds, n)
        for n, timing in enumerate(timings, first)
    ]


def trace_events(
    spans: Sequence[Span], details: Sequence[dict[str, Any]], device: str
) -> list[dict[str, Any]]:
    """Return the events of a trace with a process for the host and one for the device.

    Source: "Trace Event Format", complete ("X") and metadata ("M") events.

    Args:
        spans: the spans of the run.
        details: the details to show of each step; "type" is its category.
        device: the type of the backend whose steps run on the device.
    """
    tracks = list(dict.fromkeys((PYTHON, CALLS, *(span.track for span in spans))))
    places = {track: (int(track == device), number) for number, track in enumerate(tracks)}
    events = [_named("process_name", pid, 0, name) for pid, name in ((0, "host"), (1, "device"))]
    events += [_named("thread_name", *places[track], track) for track in tracks]
    for span in spans:
        arguments = {} if span.step is None else details[span.step]
        pid, tid = places[span.track]
        events.append(
            {
                "name": span.name,
                "cat": arguments.get("type", span.track),
                "ph": "X",
                "ts": round(span.start_us, 3),
                "dur": round(span.microseconds, 3),
                "pid": pid,
                "tid": tid,
                "args": arguments,
            }
        )
    return events


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
