"""The page of a shader test run: complete, escaped, self-contained, and well in a browser."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from vkmnn.testing.baseline import Measured, compare
from vkmnn.testing.report import _main, render, write_report
from vkmnn.testing.results import DeviceRecord, Entry, Results

NASTY = "<script>console.error('from the results')</script>\"'&"
VOID = {"meta", "link", "input", "br", "img"}


def case(error: float, name: str) -> dict[str, object]:
    return {"case": NASTY, "error": error, "absolute": error / 1e5, "dispatched": [name]}


def results() -> Results:
    """Two devices with every possible outcome of a variant, and hostile text everywhere."""
    whole = Results(date="today", version="0", baseline=NASTY, notes=[NASTY])
    for label in ("first " + NASTY, "second (2)"):
        whole.devices[label] = DeviceRecord(label, NASTY, "cpu", "1.3.0", 5, True, NASTY)
        for number in range(40):
            name = f"kernel_{number}"
            time = Measured(10.0 + number, 9.0 + number, 11.0 + number, "a", "x")
            old = Measured(30.0, 29.0, 31.0, "a", "y")
            whole.add(
                Entry(
                    label,
                    name,
                    "kernel",
                    "passed",
                    {"number": number, "storage": NASTY},
                    reached=True,
                    cases=[case(number / 40, name), case(0.0, "other")],
                    time=time,
                    against=compare(time, old if number else None),
                )
            )
        whole.add(
            Entry(label, "bad_1", "bad", "failed", reached=True, emulated=True, message=NASTY)
        )
        whole.add(Entry(label, "bad_2", "bad", "not run"))
        whole.add(Entry(label, "beyond_1", "beyond", "skipped", reason=NASTY))
    return whole


class Outline(HTMLParser):
    """Checks that tags are balanced; gathers scripts, rows and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_everything_from_a_run_is_escaped():
    page = render(results())
    assert NASTY not in page
    assert page.count("<script") == 1
    assert page.count("&lt;script&gt;") > 100


def test_page_needs_nothing_else_and_its_tags_are_balanced():
    page = render(results())
    outline = Outline(page)
    assert all(a.startswith(("#", "data:")) for a in outline.addresses)
    assert not re.search(r"url\(|@import|https?://", page)


def test_every_variant_has_a_row_and_every_kernel_a_section():
    page = render(results())
    for name in ("bad_1", "bad_2", "beyond_1", *(f"kernel_{i}" for i in range(40))):
        assert page.count(f'<th scope="row"><code>{name}</code></th>') == 2
    for kernel in ("kernel", "bad", "beyond"):
        assert f'id="{kernel}"' in page


def test_verdicts_and_counts_are_shown():
    page = render(results())
    assert "<b>2</b> of 86 variants failed" in page
    assert "<b>2</b> were never dispatched" in page
    assert '<span class="state slower">slower</span>' in page
    assert '<span class="state faster">faster</span>' in page
    assert page.count(">emulated</span>") == 2
    assert "1 of 2</td>" in page  # one of the two cases dispatches the variant


def test_a_run_without_times_and_failures_is_a_page_too():
    whole = Results(date="today", version="0")
    whole.devices["d"] = DeviceRecord("d", "driver", "cpu", "1.1.0", 0, False)
    whole.add(Entry("d", "copy_f32", "copy", "passed", reached=True, cases=[case(0.1, "copy_f32")]))
    page = render(whole)
    Outline(page)
    assert "All <b>1</b> variants" in page
    assert "baseline" not in page.split("<script>")[0].split("</style>")[1]


def test_saved_results_of_several_machines_become_one_page(tmp_path: Path):
    one, two = results(), results()
    record = two.devices.popitem()[1]
    two.devices = {"third": dataclasses.replace(record, label="third")}
    two.entries.clear()
    one.save(tmp_path / "one.json")
    two.save(tmp_path / "two.json")
    page = tmp_path / "page.html"
    assert _main([str(tmp_path / "one.json"), str(tmp_path / "two.json"), str(page)]) == 0
    assert render(Results.load(tmp_path / "one.json")) == render(one)
    assert "third" in page.read_text("utf-8")


def test_a_file_that_holds_no_results_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x.json").write_text('{"schema": 1}')
    with pytest.raises(SystemExit, match="1"):
        _main([str(tmp_path / "x.json"), str(tmp_path / "page.html")])
    assert "damaged" in capsys.readouterr().err


# --- in a browser ---------------------------------------------------------------------------------

BROWSERS = ("chromium", "chromium-headless-shell", "chromium-browser", "google-chrome", "chrome")


def browse(page: Path, fragment: str = "") -> tuple[str, list[str]]:
    """Return the page after its script ran, and its console output."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip("no Chromium (Debian: apt-get install chromium)")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    flags += [f"--user-data-dir={page.parent / 'profile'}", "--virtual-time-budget=2000"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("VK_")}
    done = subprocess.run(
        [browser, *flags, "--dump-dom", page.as_uri() + fragment],
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_console_is_heard(tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text("<script>undefined_function()</script>")
    assert browse(page)[1]


def test_browser_shows_the_page_without_complaints(tmp_path: Path):
    page = tmp_path / "page.html"
    write_report(results(), page)
    dom, console = browse(page)
    assert not console
    assert "86 variants</output>" in dom


def test_a_link_may_filter(tmp_path: Path):
    page = tmp_path / "page.html"
    write_report(results(), page)
    dom, console = browse(page, "#?text=kernel_1&verdict=slower")
    assert not console
    assert "0 of 86 variants</output>" in dom
    dom, _ = browse(page, "#?text=bad&outcome=failed")
    assert "2 of 86 variants</output>" in dom
    assert len(re.findall(r"<details[^>]*hidden", dom)) == 2
