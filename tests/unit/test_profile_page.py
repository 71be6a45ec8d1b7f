"""The page of `vkmnn profile --html`: its content, and that it works in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vkmnn.cli.app import run_cli
from vkmnn.cli.profile_page import page, write_page
from vkmnn.core.backend import MemoryUse
from vkmnn.core.profile import Profile, ProfileEntry
from vkmnn.core.timeline import Span

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
VOID = {"meta", "input", "br", "link", "img", "hr"}


def entry(name: str, kind: str, kernel: str, microseconds: float, flops: int = 0) -> ProfileEntry:
    return ProfileEntry(name, kind, f"{name} (node)", "VULKAN", kernel, microseconds, "", flops, 8)


def profile(count: int = 13) -> Profile:
    """Steps with hostile names, a kernel of two steps of one op, and many kinds of ops."""
    entries = [
        entry("<script>alert(1)</script>", "Convolution", 'conv"<b>', 50.0, 4_000_000),
        entry("<script>alert(1)</script>", "Convolution", "winograd_in", 30.0, 4_000_000),
        *(entry(f"op{n}", f"Type{n}", f"kernel_{n}", 20.0 / (n + 1)) for n in range(count)),
    ]
    spans = [Span("Python", "write inputs", 0.0, 5.0), Span("submit and wait", "submit", 5.0, 2.0)]
    now = 7.0
    for number, step in enumerate(entries):
        spans.append(Span("VULKAN", step.name, now, step.microseconds, number))
        now += step.microseconds
    spans.append(Span("Python", "read outputs", now, 4.0))
    memory = MemoryUse(2 << 20, 1 << 20, 5 << 20, 4096)
    return Profile(tuple(entries), "VULKAN", 5, now - 7, now + 4, 9.0, tuple(spans), memory)


class Outline(HTMLParser):
    """Collects elements and fails when one is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_complete_and_needs_nothing_else() -> None:
    text = page(profile(), "net <1>.onnx", "a device; inputs x [1, 3]")
    outline = Outline(text)
    assert not [a for _, a in outline.seen if {"src", "href"} & set(a)]
    assert "url(" not in text
    assert "http" not in re.sub(r"<!--.*?-->", "", text)
    assert [tag for tag, _ in outline.seen].count("script") == 1  # names are escaped
    assert "net &lt;1&gt;.onnx" in text
    rows = [a for tag, a in outline.seen if tag == "tr" and "data-step" in a]
    assert len(rows) == 15
    shares = [float(a["data-share"] or 0) for a in rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.01)


def test_bars_lie_where_their_spans_were() -> None:
    made = profile()
    length = made.timeline[-1].end_us
    bars = [a for tag, a in Outline(page(made, "net", "")).seen if tag == "rect"]
    assert len(bars) == len(made.timeline)
    for bar, span in zip(bars, made.timeline, strict=True):
        assert float((bar["x"] or "").rstrip("%")) == pytest.approx(
            100 * span.start_us / length, abs=1e-3
        )
        assert bar.get("data-step") == (None if span.step is None else str(span.step))


def test_rates_are_those_of_the_whole_op() -> None:
    text = page(profile(), "net", "")
    # 4 MFLOP in 50 + 30 µs, on both rows of the op.
    assert text.count('data-value="50">50</td>') == 2


@pytest.mark.parametrize("length", [0.7, 9.99, 10.0, 123.4, 5e6])
def test_the_ruler_has_ticks_at_any_length(length: float) -> None:
    made = Profile((), "CPU", 1, 0.0, length, length, (Span("Python", "all", 0.0, length),))
    outline = Outline(page(made, "net", ""))
    ranks = sorted(float(a["data-rank"] or 0) for _, a in outline.seen if "data-rank" in a)
    assert 0 < ranks[0] <= 1
    assert 100 < len(ranks) <= 710
    for tag, at in outline.seen:  # a text that begins at the end would be cut off
        if tag == "text" and float(str(at["x"]).rstrip("%")) > 95:
            assert at.get("class") == "end"


def test_a_profile_of_nothing() -> None:
    text = page(Profile((), "CPU", 1, 0.0, 0.0, 0.0), "nothing", "")
    assert "Device memory" not in text
    Outline(text)


def test_the_command_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], tiny_model: Path
) -> None:
    target = tmp_path / "profile.html"
    arguments = ["profile", str(tiny_model), "-d", "cpu", "-n", "1", "--html"]
    assert run_cli([*arguments, str(target)]) == 0
    assert "MatMul" in target.read_text("utf-8")
    assert run_cli([*arguments, str(tmp_path)]) == 1
    assert "give --html another path" in capsys.readouterr().err


@pytest.fixture
def tiny_model(tmp_path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper

    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "x"], ["y"])],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "tiny.onnx"
    onnx.save(made, path)
    return path


# A reader's actions, and the page's content afterwards; appended to the page's own script.
READER = """
<script>
const header = (name) =>
  [...document.querySelectorAll("th button")].find((each) => each.textContent === name);
const visible = () =>
  [...document.querySelectorAll("#steps tbody tr")].filter((row) => !row.hidden);
const type_in = (id, text) => {
  const control = document.getElementById(id);
  control.value = text;
  control.dispatchEvent(new Event("input"));
};
const seen = {};
seen.first = visible()[0].cells[2].textContent;
header("µs").click();
seen.ascending = visible()[0].cells[2].textContent;
header("op").click();
seen.byOp = visible()[0].cells[3].textContent;
type_in("search", "kernel_1 type");
seen.found = visible().map((row) => row.cells[5].textContent).sort();
type_in("search", "");
type_in("type", "Convolution");
seen.ofType = visible().length;
type_in("type", "");
type_in("least", "5");
seen.large = visible().length;
type_in("least", "0");
document.querySelector("rect.step").dispatchEvent(new MouseEvent("click"));
seen.picked = document.querySelector("tr.picked").dataset.step;
document.getElementById("closer").click();
seen.zoom = document.getElementById("timeline").getAttribute("width");
document.body.dataset.seen = JSON.stringify(seen);
</script>
"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    path = tmp_path / "profile.html"
    write_page(profile(), path, "net", "somewhere")
    path.write_text(path.read_text("utf-8").replace("</body>", READER + "</body>"), "utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    done = subprocess.run(
        [CHROMIUM, *options, f"--user-data-dir={tmp_path / 'user'}", "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    complaints = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not complaints
    match = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert match, done.stderr[-1000:]
    seen = json.loads(match[1].replace("&quot;", '"'))
    assert seen["first"] == "50.0"
    assert seen["ascending"] == "1.5"
    assert seen["byOp"] == "Convolution"
    assert seen["found"] == ["kernel_1", "kernel_10", "kernel_11", "kernel_12"]
    assert seen["ofType"] == 2
    assert seen["large"] == 4  # 50, 30, 20 and 10 of 143.6 µs
    assert seen["picked"] == "0"
    assert seen["zoom"] == "200%"
