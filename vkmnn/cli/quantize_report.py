"""Sensitivity, targets and perplexity of a quantised model: tables, and a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isfinite

from rich.text import Text

from vkmnn.cli import pages
from vkmnn.cli.console import bytes_text, heading, note, out, show, table, time_text
from vkmnn.errors import plural
from vkmnn.quantization import LayerError, OutputAccuracy, Perplexity, Quantized

SIZES = ("weights", "before", "after")
DIFFERENCES = ("output", "largest", "of the range", "same top 1", "rms", "psnr")
_SHOWN = 15
_NUMBERS = ("error", "same top 1", "weights")


def size_rows(made: Quantized) -> list[tuple[str, int | None, int | None]]:
    """Return the bytes of the weights by element type, before and after; all of them last."""
    before, after = ({name: size.nbytes for name, size in side.items()} for side in
                     (made.before, made.after))  # fmt: skip
    rows = [(name, before.get(name), after.get(name)) for name in before | after]
    return [*rows, ("all", sum(before.values()), sum(after.values()))]


def size_text(nbytes: int | None) -> str:
    """Return a size; an element type without weights has none."""
    return "–" if nbytes is None else bytes_text(nbytes)


def samples_of(made: Quantized) -> str:
    """Return how many inputs of which kind the models were compared on."""
    kind = "random input" if made.made_up else "held-out sample" if made.reached else (
        "calibration sample")  # fmt: skip
    return plural(made.samples, kind)


def difference_row(one: OutputAccuracy) -> tuple[str, ...]:
    """Return how far an output is from the float model's: the cells of `DIFFERENCES`."""
    return (
        one.name,
        f"{one.largest:.3g}" if isfinite(one.largest) else "not finite",
        f"{one.relative:.1e}",
        "–" if one.top1 is None else f"{one.top1:.1%}",
        "–" if one.rms is None else f"{one.rms:.1e}",
        "–" if one.psnr is None or not isfinite(one.psnr) else f"{one.psnr:.1f} dB",
    )


def show_sensitivity(layers: Sequence[LayerError]) -> None:
    """Print the nodes by the error that each causes alone."""
    if not layers:
        return
    heading("Sensitivity: the error of the outputs if this node alone is quantised")
    rows = table("node", "op", *_NUMBERS, right=_NUMBERS)
    for one in layers[:_SHOWN]:
        rows.add_row(*map(Text, _cells(one)))
    show(rows)
    if len(layers) > _SHOWN:
        note(f"{plural(len(layers) - _SHOWN, 'more node')}: --html and --json list all")
    unmeasured = sum(one.rms is None for one in layers)
    if unmeasured:
        note(f"{plural(unmeasured, 'node')} in the middle could not be measured in time")


def _cells(one: LayerError) -> tuple[str, ...]:
    return (
        one.name,
        one.op,
        "not measured" if one.rms is None else f"{one.rms:.2e}",
        "–" if one.top1 is None else f"{one.top1:.1%}",
        bytes_text(one.nbytes),
    )


def show_reached(made: Quantized) -> None:
    """Print what a target required, and what it costs."""
    reached = made.reached
    if reached is None:
        return
    heading(f"Target on {plural(reached.held_out, 'sample')} held out of calibration")
    for text, value in reached.targets.items():
        name = text.partition(">")[0].partition("<")[0]
        full = reached.full[name]
        out.print(Text(f"  {text}: {_number(text, value)}, with every node quantised "
                       f"{_number(text, full)}"))  # fmt: skip
    for line in costs(made):
        out.print(Text(f"  {line}"))


def _number(target: str, value: float) -> str:
    return f"{value:.1%}" if target.endswith("%") else f"{value:.6g}"


def costs(made: Quantized) -> Iterable[str]:
    """Yield sentences on the nodes that a target leaves in float."""
    reached = made.reached
    if reached is None or not reached.left:
        yield "the target leaves no node in float"
        return
    size = sum(one.nbytes for one in made.after.values())
    names = ", ".join(one.name for one in reached.left[:6])
    more = f", … ({len(reached.left) - 6} more)" if len(reached.left) > 6 else ""
    verb = "stays" if len(reached.left) == 1 else "stay"
    yield f"{plural(len(reached.left), 'node')} {verb} in float: {names}{more}"
    yield (f"that makes the weights {bytes_text(size)} instead of {bytes_text(reached.full_bytes)}")
    if reached.predicted_us:
        chosen, full, before = (
            time_text(reached.predicted_us[name] / 1e6) for name in ("chosen", "full", "float")
        )
        yield f"predicted time of a run: {chosen} instead of {full}; float {before}"


def show_perplexities(found: Sequence[Perplexity]) -> None:
    """Print the perplexity of each method; the last one was chosen."""
    if not found:
        return
    heading("Perplexity on text that calibration did not see")
    rows = table("weights", "perplexity", right=("perplexity",))
    for one in found[:-1]:
        rows.add_row(one.name, f"{one.value:.4f}")
    rows.add_row(f"{found[-1].name} (written)", f"{found[-1].value:.4f}", style="bold")
    show(rows)


def quantize_page(made: Quantized, title: str) -> str:
    """Return the page of a quantisation."""
    before, after = (
        sum(size.nbytes for size in side.values()) for side in (made.before, made.after)
    )
    facts = [(bytes_text(before), "weights before"), (bytes_text(after), "weights after")]
    facts += [(str(len(made.quantized)), "nodes quantised"), (str(len(made.in_float)), "in float")]
    shares = [one.top1 for one in made.accuracy if one.top1 is not None]
    if shares:
        facts.append((f"{min(shares):.1%}", "same top 1"))
    if made.correct is not None:
        facts.append((f"{made.correct[0]:.1%}", f"correct; float {made.correct[1]:.1%}"))
    if made.perplexities:
        facts.append((f"{made.perplexities[-1].value:.3f}", "perplexity"))
    body = [pages.tiles(facts), *(pages.card(*section) for section in _sections(made))]
    notes = [f"written to {made.path.name}", *made.notes, *([made.advice] if made.advice else [])]
    return pages.page("quantize", title, ". ".join(notes), "\n".join(body))


def _sections(made: Quantized) -> Iterable[tuple[str, str]]:
    """Yield title and content of each section of the page that has any."""
    sizes = [_sorted([name, *map(size_text, row)], row) for name, *row in size_rows(made)]
    yield "Weights", pages.table(SIZES, sizes, (1, 2))
    if made.reached is not None:
        reached = made.reached.targets.items()
        targets = [_sorted([text, _number(text, one)], [one]) for text, one in reached]
        lines = "".join(f"<p>{pages.escape(line)}</p>" for line in costs(made))
        yield "Target", pages.table(("target", "reached"), targets, (1,)) + lines
    if made.accuracy:
        rows = [_sorted(difference_row(one), _values(one)) for one in made.accuracy]
        shown = pages.table(DIFFERENCES, rows, range(1, len(DIFFERENCES)))
        yield f"Difference from the float model on {samples_of(made)}", _rows(shown)
    if made.sensitivity:
        rows = [_sorted(_cells(one), (one.rms, one.top1, one.nbytes)) for one in made.sensitivity]
        text = "<p class=soft>The error of the outputs if this node alone is quantised.</p>"
        yield "Sensitivity", text + _rows(pages.table(("node", "op", *_NUMBERS), rows, (2, 3, 4)))
    if made.perplexities:
        rows = [_sorted([one.name, f"{one.value:.4f}"], [one.value]) for one in made.perplexities]
        yield "Perplexity", pages.table(("weights", "perplexity"), rows, (1,))
    if made.in_float:
        nodes = ((one.name, one.op, one.reason) for one in made.in_float)
        yield "In float", _rows(pages.table(("node", "op", "why"), nodes, ()))


def _rows(table: str) -> str:
    return f'<div class="scroll rows">{table}</div>'


def _values(one: OutputAccuracy) -> tuple[float | None, ...]:
    return one.largest, one.relative, one.top1, one.rms, one.psnr


def _sorted(texts: Sequence[str], values: Sequence[float | None]) -> list[str | pages.Cell]:
    """Return a row whose last cells are sorted by values; missing ones count as -1."""
    names = texts[: -len(values)]
    numbers = (-1.0 if one is None else min(one, 1e300) for one in values)
    return [*names, *map(pages.Cell, texts[-len(values) :], numbers)]
