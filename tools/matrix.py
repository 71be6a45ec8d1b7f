"""The task `drivers`: the tests on each driver that this machine can have, and a table of it."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools import debian_root, drivers, environment, kompute, page, process, suites, vulkan
from tools.drivers import Driver, Place
from tools.process import CANNOT, CannotError, TaskError, say
from tools.suites import Report

PAGE = process.ROOT / "docs" / "drivers.md"
RESULTS = "drivers-result.json"
"""What a run in a root of its own leaves beside the checkout's copy."""


def promises(python: Path, device: bool) -> dict[str, str]:
    """Return the variables by which tests fail, not skip, for want of what is here."""
    here = {
        "VKMNN_REQUIRE_VULKAN": device,
        "VKMNN_REQUIRE_VALIDATION": device and vulkan.ensure_validation(),
        "VKMNN_REQUIRE_SPIRV_VAL": vulkan.ensure_spirv_val(),
        "VKMNN_REQUIRE_KOMPUTE": device and kompute.is_installed(python),
    }
    return {name: "1" for name, promised in here.items() if promised}


def second_driver(fetched: bool = True) -> dict[str, str]:
    """Return the variable that names SwiftShader to the tests that run on it too.

    Args:
        fetched: fetch it where it is not here.
    """
    driver = drivers.DRIVERS["swiftshader"]
    if not fetched and driver.find() is None:
        return {}
    try:
        place = driver.place()
    except TaskError as error:
        say(f"without SwiftShader, its tests are skipped: {str(error).splitlines()[0]}")
        return {}
    return {"VKMNN_SWIFTSHADER_ICD": place.env["VK_DRIVER_FILES"]}


class Result:
    """What a run of several drivers came to."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.missing: dict[str, str] = {}
        self.broken: dict[str, str] = {}

    @property
    def status(self) -> int:
        """The exit status: 0 only where every driver that is here did well."""
        failed = next((report.status for report in self.reports if report.status), 0)
        return failed or int(bool(self.broken))

    def show(self) -> None:
        """Print the table, and what is not in it."""
        if self.reports:
            print(f"\n{page.shown(self.reports)}\n", flush=True)
        for name, reason in self.missing.items():
            say(f"{name}: NOT HERE, {reason}")
        for name, reason in self.broken.items():
            say(f"{name}: FAILED, {reason}")


def run(
    names: Sequence[str],
    *,
    short: bool,
    more: Sequence[str] = (),
    record: Path | None = None,
    called: str = "",
) -> Result:
    """Run the tests on each driver, one after the other.

    Args:
        names: as `drivers.chosen` takes them.
        short: the parts that show most in little time.
        more: further arguments for pytest.
        record: the page whose table gets a driver's results as soon as they are there.
        called: what the driver is called outside of the root that this runs in.
    """
    result = Result()
    for name in names:
        try:
            result.reports.append(_run_one(name, short, more, called))
            if record:
                page.record(result.reports[-1:], record)
        except CannotError as error:
            result.missing[name] = str(error)
        except TaskError as error:
            result.broken[name] = str(error)
    result.show()
    return result


def _run_one(name: str, short: bool, more: Sequence[str], called: str = "") -> Report:
    driver, by_kompute = drivers.chosen(name)
    place = driver.place()
    if place.root:
        return _run_inside(name, place.root, by_kompute, short, more)
    vulkan.ensure_loader()
    python = environment.prepare("test")
    if by_kompute and not kompute.is_installed(python):
        kompute.install(python)
    parts: tuple[str, ...] = suites.SHORT if short else suites.WHOLE
    env = {**promises(python, True), **place.env}
    if by_kompute:
        parts = tuple(part for part in parts if part in suites.BY_KOMPUTE)
        env["VKMNN_DRIVER"] = drivers.KOMPUTE
    return suites.run(called or name, python, env, parts, more)


def _run_inside(
    name: str, root: Path, by_kompute: bool, short: bool, more: Sequence[str]
) -> Report:
    debian_root.copy_checkout(root)
    inside = drivers.KOMPUTE if by_kompute else "system"
    results = root / debian_root.PROJECT / RESULTS
    command = ["python3", "tasks.py", "drivers", inside, "--results", RESULTS, "--called", name]
    command += [*(["--short"] if short else []), "--", *more]
    say(f"{name}: in {root}")
    debian_root.run(root, command, {})
    if not results.is_file():
        raise TaskError("the run inside ended without a result; its output is above")
    report = suites.load(results)
    return Report(name, report.device, report.version, report.layer, report.date, report.outcomes)


# --- the task ------------------------------------------------------------------------------------


def main(args: Sequence[str]) -> int:
    """List the drivers, or run the tests on those that are named; return the exit status."""
    own, more = list(args), []
    if "--" in own:
        own, more = own[: own.index("--")], own[own.index("--") + 1 :]
    options = _parser().parse_args(own)
    if options.list:
        print(_listed())
        return 0
    names = options.names or ["system"]
    chosen = [drivers.chosen(name)[0] for name in names]  # before anything is run
    if options.refresh:
        for driver in chosen:
            shutil.rmtree(process.cache_folder() / "drivers" / driver.name, ignore_errors=True)
    page_of = PAGE if options.record else None
    result = run(names, short=options.short, more=more, record=page_of, called=options.called)
    if options.results and result.reports:
        suites.save(result.reports[0], Path(options.results))
    if options.record:
        say(f"written into {PAGE}")
    return result.status or (CANNOT if result.missing else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tasks.py drivers",
        description="Run the tests on Vulkan drivers (docs/drivers.md). "
        "What follows -- is passed on to pytest.",
    )
    known = ", ".join([*drivers.DRIVERS, drivers.KOMPUTE])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{known}, or NAME+kompute")
    parser.add_argument("--list", action="store_true", help="show which there are")
    parser.add_argument("--short", action="store_true", help="run what shows most in little time")
    parser.add_argument("--record", action="store_true", help="write the results into the page")
    parser.add_argument("--refresh", action="store_true", help="fetch the drivers anew")
    parser.add_argument("--results", metavar="FILE", help=argparse.SUPPRESS)
    parser.add_argument("--called", metavar="NAME", default="", help=argparse.SUPPRESS)
    return parser


def _listed() -> str:
    rows = [["name", "what it is", "version", "here?"]]
    rows += [_described(driver) for driver in drivers.DRIVERS.values()]
    python = environment.venv_python()
    built = environment.venv_works() and kompute.is_installed(python)
    kp = "built" if built else "can be built where a compiler is or can be installed"
    rows.append([drivers.KOMPUTE, "the system's, through Kompute", kompute.PACKAGE, kp])
    return page.columns(rows)


def _described(driver: Driver) -> list[str]:
    place = driver.find()
    if place is None:
        reason = driver.cannot()
        here = f"not here: {reason}" if reason else "can be fetched"
        return [driver.name, driver.what, "", here]
    return [driver.name, driver.what, _version(place), "here"]


def _version(place: Place) -> str:
    if place.root:
        return debian_root.package_version(place.root, "mesa-vulkan-drivers")
    return ", ".join(name for name, _ in vulkan.probe_vulkan(place.env)["devices"])
