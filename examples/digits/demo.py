"""Recognise held-out handwritten digits on a Vulkan device, and check the answers.

    python examples/digits/demo.py [--device auto|cpu|INDEX|NAME] [--runs 200]

The exit status is 1 when the accuracy or the agreement with the numpy backend is not what it was
when the model was trained.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

import vkmnn

HERE = Path(__file__).parent
SHADES = " ░▒▓█"
PLAIN_SHADES = " .+#@"  # for consoles that cannot show block characters
DIGIT_WIDTH = 16  # characters: two for each of the 8 pixels of a row, since a character is tall
MIN_ACCURACY = 0.98
MAX_DIFFERENCE = 1e-4

Array = npt.NDArray[Any]


def open_session(device: str, console: Console) -> vkmnn.InferenceSession:
    """Open the model with every op on the device; on the numpy backend when there is none."""
    model = HERE / "digits.onnx"
    if device != "auto":
        return vkmnn.InferenceSession(model, device=device)
    try:
        return vkmnn.InferenceSession(model, device="auto", require_device=True)
    except vkmnn.DeviceNotFoundError as error:
        console.print(
            Text(f"No Vulkan device: the numpy backend runs instead.\n{error}\n", "yellow")
        )
        return vkmnn.InferenceSession(model, device="cpu")


def to_input(images: Array) -> Array:
    """Return images [N, 8, 8] of 0..16 as the network wants them: [N, 1, 8, 8] of 0..1."""
    return images[:, None].astype(np.float32) / 16


def drawing(image: Array, predicted: int, label: int, plain: bool) -> Text:
    """Return one digit in block characters (`plain`: ASCII), and what the network says beneath."""
    shades = PLAIN_SHADES if plain else SHADES
    levels = (image.astype(int) * (len(shades) - 1) + 8) // 16
    rows = ["".join(shades[level] * 2 for level in row) for row in levels]
    right = predicted == label
    good, bad = ("ok", "wrong:") if plain else ("✓", "✗")
    verdict = f"{predicted} {good}" if right else f"{predicted} {bad} it is {label}"
    text = Text("\n".join(rows) + "\n")
    return text.append(verdict.center(DIGIT_WIDTH), "green" if right else "bold red")


def picture(images: Array, predicted: Array, labels: Array, console: Console) -> Table:
    """Return as many digits side by side as fit, one of them a wrong one if there is any."""
    count = max(1, (console.width + 2) // (DIGIT_WIDTH + 3))
    wrong = np.flatnonzero(predicted != labels)[:1]
    right = np.flatnonzero(predicted == labels)[: count - len(wrong)]
    table = Table.grid(padding=(0, 3, 0, 0))
    table.add_row(
        *(
            drawing(images[i], int(predicted[i]), int(labels[i]), is_plain(console))
            for i in [*right, *wrong]
        )
    )
    return table


def is_plain(console: Console) -> bool:
    """Tell whether the console's encoding lacks what the picture is drawn with."""
    try:
        f"{SHADES}✓✗".encode(console.encoding)
    except UnicodeEncodeError:
        return True
    return False


def median_seconds(session: vkmnn.InferenceSession, x: Array, runs: int) -> float:
    """Return the median time of one run, after runs that plan and warm up."""
    times = []
    for run in range(runs + 10):
        start = time.perf_counter()
        session.run(None, {"image": x})
        if run >= 10:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> int:
    """Run the demo; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto", help="auto, cpu, an index or part of a name")
    parser.add_argument("--runs", type=int, default=200, help="timed runs at batch 1")
    options = parser.parse_args()
    console = Console(highlight=False)

    test = np.load(HERE / "digits_test.npz")
    images, labels = test["images"], test["labels"]
    x = to_input(images)
    with (
        open_session(options.device, console) as session,
        vkmnn.InferenceSession(HERE / "digits.onnx", device="cpu") as reference,
    ):
        (probabilities,) = session.run(None, {"image": x})
        (expected,) = reference.run(None, {"image": x})
        placement = session.placement()
        single = median_seconds(session, x[:1], options.runs)
        batch = median_seconds(session, x[:64], max(1, options.runs // 5))

    predicted = probabilities.argmax(-1)
    right = int((predicted == labels).sum())
    same = int((predicted == expected.argmax(-1)).sum())
    difference = float(np.abs(probabilities - expected).max())
    on_device = placement.main != "CPU"
    where = ", ".join(f"{count} on {backend}" for backend, count in placement.counts.items())

    facts = Table.grid(padding=(0, 3, 0, 0))
    facts.add_row("device", describe(session.device))
    facts.add_row("network", f"{len(placement.ops)} ops after fusion: {where}")
    facts.add_row(
        "accuracy", f"{right / len(labels):.2%} ({right} of {len(labels)} held-out digits)"
    )
    facts.add_row("latency", f"{single * 1e3:.2f} ms for one image (median of {options.runs} runs)")
    facts.add_row("throughput", f"{64 / batch:,.0f} images/s in batches of 64")
    facts.add_row(
        "agreement",
        f"{same}/{len(labels)} predictions as on numpy; largest difference {difference:.1e}"
        if on_device
        else "nothing to compare: numpy is the device",
    )
    console.print(picture(images, predicted, labels, console))
    console.print()
    console.print(facts)
    return int(right < MIN_ACCURACY * len(labels) or difference > MAX_DIFFERENCE)


def describe(device: Any) -> str:
    """Return a device's name with its type and driver where it has them (numpy has none)."""
    if not hasattr(device, "driver_name"):
        return str(device.name)
    return f"{device.name} ({device.type.value}, {device.driver_name} {device.driver_version})"


if __name__ == "__main__":
    raise SystemExit(main())
