"""`vkmnn plan`: the predicted kernels and times on a device of a profile."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from vkmnn.base.whole_files import check_writable
from vkmnn.cli.console import (
    bytes_text,
    document,
    heading,
    histogram,
    interruptible,
    note,
    number_text,
    out,
    progress,
    shape_text,
    show,
    table,
    time_text,
)
from vkmnn.cli.feeds import make_feeds, picture_sizes, shapes_to_open
from vkmnn.cli.plan_page import TERMS, write_plan_page
from vkmnn.cli.run import tell_assumed
from vkmnn.cli.saving import saving
from vkmnn.errors import VkmnnError, plural
from vkmnn.inference_session import NodeArg
from vkmnn.ir import Array
from vkmnn.opening import Network, load_network
from vkmnn.opening.planned import Planned, plan_for
from vkmnn.runtime.device_profiles import profile_names
from vkmnn.schedule_config import STORES, PrecisionName
from vkmnn.vulkan.cost.devices import class_of, cores_of
from vkmnn.vulkan.device_rules import refusal_reasons
from vkmnn.vulkan.gemm.coop_tiles import unused_matrices
from vkmnn.vulkan.plan.forecast import Forecast

_WIDE = 130
_DETAILS = ("groups", "waves", "padded")
"""Columns of dispatches that narrow terminals have no room for."""


class Prediction(NamedTuple):
    """Predicted microseconds for a profile, and the device whose constants were used."""

    us: float
    device_class: str
    source: str

    @property
    def measured(self) -> bool:
        """Whether its figures rest on measurements."""
        return self.source.startswith("measured")


def plan_model(
    model: Path,
    profile: str,
    precision: PrecisionName,
    shapes: list[str],
    alone: bool,
    html: Path | None,
) -> None:
    """Plan a model for a profile, without a device, and print the prediction.

    Args:
        model: an ONNX file.
        profile: the name of a device profile.
        precision: that of a session.
        shapes: `--shape` options.
        alone: leave out the predictions for other profiles.
        html: file to write a page to.
    """
    if html is not None:
        with saving("page cannot be written", "--html", html):
            check_writable(html)
    network = load_network(model, shapes=shapes_to_open(model, shapes))
    args, outputs = (
        [
            NodeArg(
                info.name,
                info.dtype.onnx,
                None if info.shape is None else list(info.shape),
                info.dtype.value,
            )
            for info in infos
        ]
        for infos in (network.graph.inputs, network.outputs)
    )
    fed = make_feeds(args, [], shapes, 0, picture_sizes(outputs)[0])
    feeds = fed.arrays
    tell_assumed(fed.notes)
    with interruptible("nothing was planned"):
        planned = plan_for(network, profile, precision, feeds, places=True)
        others = {} if alone else _others(network, profile, precision, feeds)
    others[profile] = _predicted(planned.forecast)
    facts = as_dict(model.name, profile, planned, others)
    if html is not None:
        inputs = ", ".join(f"{name} {shape_text(x.shape)}" for name, x in feeds.items())
        with saving("page cannot be written", "--html", html):
            write_plan_page(facts, html, f"inputs {inputs}")
    document("plan", facts)
    _show(model.name, planned, facts)
    if html is not None:
        out.print(Text(f"saved {html}; open it in a browser"))


def _others(
    network: Network, profile: str, precision: PrecisionName, feeds: Mapping[str, Array]
) -> dict[str, Prediction | None]:
    """Return the predictions for every other profile; None where planning fails."""
    found: dict[str, Prediction | None] = {}
    names = [name for name in profile_names() if name != profile]
    with progress("planning for other profiles") as report:
        for number, name in enumerate(names):
            report(number, len(names), f"planning for {name}")
            try:
                planned = plan_for(network, name, precision, feeds, places=False)
            except VkmnnError as error:
                note(f"{name}: {error.message}")
                found[name] = None
            else:
                found[name] = _predicted(planned.forecast)
    return found


def _predicted(forecast: Forecast) -> Prediction:
    device = class_of(forecast.info)
    return Prediction(forecast.predicted_us, device.name, device.source)


def as_dict(
    model: str, profile: str, planned: Planned, others: Mapping[str, Prediction | None]
) -> dict[str, Any]:
    """Return everything known about a plan, for JSON.

    Args:
        model: its name.
        profile: the profile that it was planned for.
        planned: the plan.
        others: predictions by profile.
    """
    forecast, memory = planned.forecast, planned.memory
    device = class_of(forecast.info)
    away = planned.placement.off_device
    return {
        "model": model,
        "profile": profile,
        "device": forecast.info.name,
        "class": device.name,
        "constants_from": device.source,
        "multiprocessors": cores_of(forecast.info),
        "precision": planned.precision,
        "predicted_ms": forecast.predicted_us / 1000,
        "dispatches": len(forecast.steps),
        "levels": forecast.levels,
        "submits": forecast.submits,
        "padded_work": forecast.padded_work,
        "bytes": forecast.nbytes,
        "memory": {
            "constants": memory.constants,
            "activations": memory.activations,
            "lower_bound": memory.lower_bound,
            "io": memory.io,
        },
        "terms_us": forecast.terms(),
        "refusals": [
            *refusal_reasons(forecast.info),
            *filter(None, [unused_matrices(forecast.info)]),
        ],
        "off_device": [{"op": op.type, "reason": op.reason} for op in away],
        "steps": [
            {
                "level": step.level,
                "op": step.op,
                "kernel": step.kernel,
                "workgroups": step.workgroups,
                "invocations": step.invocations,
                "waves": step.waves,
                "bytes": step.nbytes,
                "padded_work": step.done / step.needed if step.needed else None,
                "predicted_us": step.cost.total,
                "terms_us": step.cost.terms(),
            }
            for step in forecast.steps
        ],
        "profiles": {
            name: None if one is None else one.us / 1000
            for name, one in sorted(
                others.items(), key=lambda item: item[1].us if item[1] else float("inf")
            )
        },
        "sources": {
            name: {"class": one.device_class, "constants_from": one.source}
            for name, one in others.items()
            if one is not None
        },
    }


def _show(model: str, planned: Planned, facts: Mapping[str, Any]) -> None:
    half = STORES[planned.precision]
    heading(f"{model} as {facts['profile']} ({facts['device']}){half}")
    titles = ["level", "µs", "kernel", "op", *_DETAILS, "bytes", "mostly"]
    if out.width < _WIDE:
        titles = [title for title in titles if title not in _DETAILS]
    right = ("level", "µs", "groups", "waves", "padded", "bytes")
    rows = table(*titles, right=right, cut=("op",))
    for step in facts["steps"]:
        padded = step["padded_work"]
        cells = {
            "level": str(step["level"]),
            "µs": f"{step['predicted_us']:.1f}",
            "kernel": Text(step["kernel"]),
            "op": Text(step["op"]),
            "groups": number_text(step["workgroups"]),
            "waves": number_text(step["waves"]),
            "padded": "" if padded is None else f"{padded:.2f}",
            "bytes": bytes_text(step["bytes"]),
            "mostly": max(step["terms_us"], key=step["terms_us"].__getitem__),
        }
        rows.add_row(*(cells[title] for title in titles))
    show(rows)
    spent = table("predicted", "µs", right=("µs",))
    for name, us in facts["terms_us"].items():
        spent.add_row(TERMS.get(name, name), f"{us:.1f}")
    show(spent)
    if len(facts["profiles"]) > 1:
        _show_profiles(facts["profiles"], facts["sources"])
    memory = planned.memory
    spent_text = time_text(facts["predicted_ms"] / 1000)
    dispatches = plural(facts["dispatches"], "dispatch", "dispatches")
    counts = f"{dispatches} in {plural(facts['levels'], 'level')} of dependencies"
    kept = (
        f"weights {bytes_text(memory.constants)}, activations {bytes_text(memory.activations)}, "
        f"inputs and outputs {bytes_text(memory.io)}"
    )
    moved = f"{bytes_text(facts['bytes'])} read and written in a run"
    products = f"{facts['padded_work']:.2f} times the needed products, padding included"
    lines = (
        f"predicted {spent_text}: {counts}, {products}",
        f"kernels: {histogram(step['kernel'].split('_')[0] for step in facts['steps'])}",
        f"device memory: {kept}; {moved}",
        f"the constants of the class '{facts['class']}': {facts['constants_from']}",
    )
    for line in lines:
        out.print(Text(line))
    if not facts["constants_from"].startswith("measured"):
        note(
            f"nothing has been measured for the profile '{facts['profile']}': its figures follow "
            "from data sheets, and profiles of one class and core count get the same ones"
        )
    for reason in facts["refusals"]:
        note(reason)
    if facts["off_device"]:
        away = [op["op"] for op in facts["off_device"]]
        runs = "op runs" if len(away) == 1 else "ops run"
        note(f"{len(away)} {runs} on the host, outside the prediction: {histogram(away)}")


def _show_profiles(
    profiles: Mapping[str, float | None], sources: Mapping[str, Mapping[str, str]]
) -> None:
    rows = table("profile", "predicted ms", "class", "constants from", right=("predicted ms",))
    for name, milliseconds in profiles.items():
        about = sources.get(name, {})
        rows.add_row(
            name,
            "–" if milliseconds is None else f"{milliseconds:.3g}",
            about.get("class", ""),
            about.get("constants_from", ""),
        )
    show(rows)
