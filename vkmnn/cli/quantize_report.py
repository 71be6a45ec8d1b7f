"""Sensitivity, targets and perplexity of a quantised model: tables, and a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.text import Text

from vkmnn.cli import pages
from vkmnn.cli.console import bytes_text, heading, note, out, show, table, time_text
from vkmnn.errors import plural
from vkmnn.quantization import LayerError, Perplexity, Quantized

_SHOWN = 15
_NUMBERS = ("error", "same top 1", "weights")


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
        yield "every node is quantised"
        return
    size = sum(one.nbytes for one in made.after.values())
    names = ", ".join(one.name for one in reached.left[:6])
    more = f", … ({len(reached.left) - 6} more)" if len(reached.left) > 6 else ""
    yield f"{plural(len(reached.left), 'node')} stay in float: {names}{more}"
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
    body = [pages.tiles(facts)]
    if made.reached is not None:
        targets = [[text, _number(text, one)] for text, one in made.reached.targets.items()]
        lines = "".join(f"<p>{pages.escape(line)}</p>" for line in costs(made))
        shown = pages.table(("target", "reached"), targets, (1,))
        body.append(pages.card("Target", shown + lines))
    if made.sensitivity:
        rows = [_row(one) for one in made.sensitivity]
        names = ("node", "op", *_NUMBERS)
        shown = pages.table(names, rows, (2, 3, 4))
        text = "<p class=soft>The error of the outputs if this node alone is quantised.</p>"
        body.append(pages.card("Sensitivity", f'{text}<div class="scroll rows">{shown}</div>'))
    if made.perplexities:
        rows = [[one.name, pages.Cell(f"{one.value:.4f}", one.value)] for one in made.perplexities]
        body.append(pages.card("Perplexity", pages.table(("weights", "perplexity"), rows, (1,))))
    if made.in_float:
        shown = pages.table(("node", "op", "why"), [list(one) for one in _float(made)], ())
        body.append(pages.card("In float", f'<div class="scroll rows">{shown}</div>'))
    notes = ". ".join([*made.notes, *([made.advice] if made.advice else [])])
    return pages.page("quantize", title, notes or f"written to {made.path.name}", "\n".join(body))


def _row(one: LayerError) -> list[str | pages.Cell]:
    name, op, error, top1, size = _cells(one)
    return [
        name,
        op,
        pages.Cell(error, -1 if one.rms is None else one.rms),
        pages.Cell(top1, -1 if one.top1 is None else one.top1),
        pages.Cell(size, one.nbytes),
    ]


def _float(made: Quantized) -> Iterable[tuple[str, str, str]]:
    return ((one.name, one.op, one.reason) for one in made.in_float)
