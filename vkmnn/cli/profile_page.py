"""The page of `vkmnn profile --html`: one self-contained file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import floor, log10
from pathlib import Path
from string import Template

from vkmnn.cli import pages
from vkmnn.cli.console import bytes_text, number_text, time_text
from vkmnn.core.profile import Profile, ProfileEntry
from vkmnn.core.timeline import CALLS, PYTHON, Span
from vkmnn.errors import plural

_BARS = 10
_MAX_TICKS = 700
_LANE = 34  # height in pixels
_LAST_TEXT = 0.93  # of the length: texts of later ticks are on their left, or they would be cut off

_BODY = Template("""$tiles
<div class="pair">
<section class="card"><h2>Time by operator</h2>$by_type</section>
<section class="card"><h2>Time by kernel</h2>$by_kernel</section>
</div>
<section class="card">
<h2>One run</h2>
<div class="tools">
<button type="button" id="closer">Zoom in</button>
<button type="button" id="wider">Zoom out</button>
<span class="soft">of median length, with timestamps, which slow it down</span>
</div>
$timeline
<div class="legend">$legend</div>
<div id="detail" class="soft">Point at a bar to see what it is; click it to find its row.</div>
</section>
<section class="card">
<h2>Steps</h2>
<div class="tools">
<input type="search" id="search" placeholder="op, name or kernel" aria-label="Search">
<select id="type" aria-label="Operator"><option value="">all operators</option>$options</select>
<label>at least <select id="least"><option value="0">any share</option>
<option value="0.1">0.1 %</option><option value="1">1 %</option><option value="5">5 %</option>
</select></label>
<span class="soft" id="shown"></span>
</div>
<div class="scroll rows"><table id="steps" class="numbered">
<thead><tr>$heads</tr></thead>
<tbody>
$rows</tbody>
</table></div>
<p class="soft">A step runs from the end of the one before to its own end. GFLOP/s and GB/s are of
the whole op, which may take several steps; each tensor counts once.</p>
</section>
$memory""")

_COLUMNS = ("#", "share", "µs", "op", "name", "kernel", "chosen by", "GFLOP/s", "GB/s")
_NUMBERS = (0, 1, 2, 7, 8)
_SORTED_BY = 2


def write_page(profile: Profile, path: Path, title: str, subtitle: str) -> None:
    """Write a profile as one HTML file.

    Args:
        profile: the measurements.
        path: the file.
        title: the model.
        subtitle: the device and the inputs.

    Raises:
        OSError: the file cannot be written.
    """
    pages.write(page(profile, title, subtitle), path)


def page(profile: Profile, title: str, subtitle: str) -> str:
    """Return the page; arguments as of `write_page`."""
    types = [name for name, _, _ in profile.totals("type")]
    colours = pages.colours_of(types)
    body = _BODY.substitute(
        tiles=pages.tiles(_facts(profile)),
        by_type=_shares(profile.totals("type"), colours),
        by_kernel=_shares(profile.totals("kernel"), {}, "bars wide"),
        timeline=_timeline(profile, colours),
        legend=pages.legend(types, colours),
        options="".join(f"<option>{escape(name)}</option>" for name in sorted(types)),
        heads=pages.heads(_COLUMNS, _NUMBERS, _SORTED_BY),
        rows="".join(_rows(profile, colours)),
        memory=_memory(profile),
    )
    footer = f"vkmnn profile, {plural(profile.runs, 'run')}"
    return pages.page("profile", title, subtitle, body, script="profile_page.js", footer=footer)


def _facts(profile: Profile) -> list[tuple[str, str]]:
    """Return labelled values."""
    facts = [(time_text(profile.wall_us / 1e6), "a run (median)")]
    if profile.gpu_us:
        facts.append((time_text(profile.gpu_us / 1e6), "its steps on the device, with timestamps"))
    facts.append((time_text(max(profile.python_us, 0) / 1e6), "in Python"))
    facts.append((str(len(profile.entries)), f"steps of {plural(len(profile.ops()), 'op')}"))
    if away := profile.away_us:
        share = 100 * away / (profile.total_us or 1.0)
        facts.append((time_text(away / 1e6), f"steps off the device, {share:.1f} %"))
        facts.append((time_text(profile.crossings_us / 1e6), "copies between backends"))
    flops = sum(op.flops for op in profile.ops())
    if flops and profile.wall_us:
        rate = number_text(flops / profile.wall_us * 1e6)
        facts.append((f"{rate}FLOP/s", f"{number_text(flops)}FLOP in a run"))
    if profile.memory.activations or profile.memory.constants:
        memory = profile.memory
        total = memory.constants + memory.activations + memory.io
        facts.append((bytes_text(total), "device memory"))
    return facts


def _shares(
    totals: Sequence[tuple[str, int, float]], colours: dict[str, str], kind: str = "bars"
) -> str:
    """Return bars for the slowest steps, and one for all others together."""
    total = sum(spent for _, _, spent in totals) or 1.0
    shown = list(totals[:_BARS])
    others = totals[_BARS:]
    if others:
        count, spent = sum(row[1] for row in others), sum(row[2] for row in others)
        shown.append((f"{len(others)} others", count, spent))
    longest = max((spent for _, _, spent in shown), default=0.0) or 1.0
    parts = []
    for name, count, spent in shown:
        colour = colours.get(name, "var(--other)" if colours else "var(--accent)")
        parts.append(
            f'<span title="{escape(name)}">{escape(name)}</span>'
            f'<i style="width:{100 * spent / longest:.2f}%;background:{colour}"></i>'
            f"<em>{100 * spent / total:.1f} % · {count}×</em>"
        )
    return f'<div class="{kind}">{"".join(parts)}</div>'


# --- the timeline --------------------------------------------------------------------------------


def _timeline(profile: Profile, colours: dict[str, str]) -> str:
    tracks = list(dict.fromkeys(span.track for span in profile.timeline))
    tracks.sort(key=[PYTHON, CALLS, *tracks].index)
    length = max((span.end_us for span in profile.timeline), default=0.0) or 1.0
    height = 18 + _LANE * len(tracks)
    bars = "".join(
        _bar(profile, span, tracks.index(span.track), length, colours) for span in profile.timeline
    )
    names = "".join(f"<span>{escape(track)}</span>" for track in tracks)
    return (
        f'<div class="lanes"><div class="names">{names}</div><div class="scroll">'
        f'<svg id="timeline" data-zoom="1" width="100%" height="{height}" role="img" '
        f'aria-label="What happened when in one run">'
        f"{''.join(_ticks(length, height))}{bars}</svg></div></div>"
    )


def _bar(profile: Profile, span: Span, lane: int, length: float, colours: dict[str, str]) -> str:
    text = f"{span.name}: {span.microseconds:.1f} µs, from {span.start_us:.1f} µs"
    kind, colour = "", "var(--other)"
    if span.step is not None:
        entry = profile.entries[span.step]
        kind = f' class="step" data-step="{span.step}"'
        colour = colours.get(entry.type, colour)
        text = f"{entry.type} {text} [{entry.kernel}]"
    return (
        f'<rect{kind} x="{100 * span.start_us / length:.4f}%" y="{_LANE * lane}" '
        f'width="{max(100 * span.microseconds / length, 0.02):.4f}%" height="{_LANE - 6}" rx="2" '
        f'style="fill:{colour}"><title>{escape(text)}</title></rect>\n'
    )


def _ticks(length: float, height: int) -> Iterable[str]:
    """Yield a ruler; a tick's rank is the number of coinciding ticks."""
    coarsest = 10.0 ** floor(log10(length))
    steps = [coarsest / 10**power / part for power in range(-1, 4) for part in (1, 2)]
    steps = [step for step in steps if length / step <= _MAX_TICKS]
    placed: set[int] = set()
    for step in steps:
        for number in range(int(length / step) + 1):
            key = round(number * step / steps[-1])
            if key not in placed:
                placed.add(key)
                yield _tick(number * step, length, height, length / step)


def _tick(now: float, length: float, height: int, rank: float) -> str:
    x = f"{100 * now / length:.4f}%"
    side = 'dx="-3" class="end"' if now > _LAST_TEXT * length else 'dx="3"'
    return (
        f'<g class="tick" data-rank="{rank:.1f}"><line x1="{x}" x2="{x}" y1="0" '
        f'y2="{height - 16}"/><text x="{x}" y="{height - 4}" {side}>{time_text(now / 1e6)}</text>'
        "</g>"
    )


# --- the table -----------------------------------------------------------------------------------


def _rows(profile: Profile, colours: dict[str, str]) -> Iterable[str]:
    """Yield the rows, slowest first."""
    total = profile.total_us or 1.0
    spent = {op.name: op.microseconds for op in profile.ops()}
    ranked = sorted(enumerate(profile.entries), key=lambda item: -item[1].microseconds)
    for number, entry in ranked:
        share = 100 * entry.microseconds / total
        colour = colours.get(entry.type, "var(--other)")
        cells = (
            _number(number + 1, str(number + 1)),
            _number(share, f"{share:.1f} %", f' style="--w:{share:.2f}"', "n share"),
            _number(entry.microseconds, f"{entry.microseconds:,.1f}"),
            f'<td class="op"><i style="background:{colour}"></i>{escape(entry.type)}</td>',
            f'<td class="text" title="{escape(entry.source)}">{escape(entry.name)}</td>',
            f'<td class="kernel">{escape(entry.kernel)}</td>',
            f"<td>{escape(entry.choice)}</td>",
            *(_rate(count, spent[entry.name]) for count in _work(entry)),
        )
        yield (
            f'<tr data-step="{number}" data-type="{escape(entry.type)}" '
            f'data-share="{share:.4f}">{"".join(cells)}</tr>\n'
        )


def _work(entry: ProfileEntry) -> tuple[int, int]:
    return entry.flops, entry.nbytes


def _number(value: float, text: str, style: str = "", kind: str = "n") -> str:
    return f'<td class="{kind}" data-value="{value:.6g}"{style}>{text}</td>'


def _rate(count: int, microseconds: float) -> str:
    if not count or not microseconds:
        return _number(-1, "–")
    rate = count / microseconds / 1e3
    return _number(rate, f"{rate:.3g}" if rate < 100 else f"{rate:,.0f}")


def _memory(profile: Profile) -> str:
    memory = profile.memory
    rows = {
        "weights": memory.constants,
        "activations": memory.activations,
        "inputs and outputs": memory.io,
    }
    longest = max(rows.values())
    if not longest:
        return ""
    parts = []
    for name, size in rows.items():
        bound = ""
        text = bytes_text(size)
        if name == "activations" and size:
            bound = f'<u style="left:{100 * memory.lower_bound / size:.1f}%"></u>'
            text += f" (at least {bytes_text(memory.lower_bound)})"
        width = 100 * size / longest
        parts.append(
            f'<span>{name}</span><i style="width:{width:.2f}%;background:var(--accent)">{bound}</i>'
            f"<em>{text}</em>"
        )
    return (
        '<section class="card"><h2>Device memory</h2>'
        f'<div class="bars">{"".join(parts)}</div><p class="soft">Activations share memory by '
        "lifetime; the mark is the least that any placement of them could take.</p></section>"
    )
