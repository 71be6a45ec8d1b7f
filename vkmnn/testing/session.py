"""A run of the suite, from options to files, independent of pytest.

Lives in the process that hears of all results.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from vkmnn._version import __version__
from vkmnn.errors import InvalidInputError, MissingExtraError, VkmnnError
from vkmnn.testing.baseline import Baseline, Measured, compare, device_key
from vkmnn.testing.devices import Target, targets, unvalidated
from vkmnn.testing.files import check_writable
from vkmnn.testing.results import DeviceRecord, Entry, Results
from vkmnn.testing.selection import ABSENT, chosen_variants, has_builtin, id_of
from vkmnn.testing.summary import summary_lines
from vkmnn.testing.timing import Job, measure

if TYPE_CHECKING:
    from vkmnn.testing.case import Variant
    from vkmnn.testing.settings import Settings


class ShaderSession:
    """Gathers results, times variants and writes the files.

    Raises:
        VkmnnError: a device does not exist, a file cannot be read or written, or an option is
            missing.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        _check_files(settings)
        self._baseline = _load_baseline(settings)
        self._targets = targets(settings.devices)
        reasons = {target.label: unvalidated(target) for target in self._targets}
        self.validation = not any(reasons.values())
        self._results = Results(
            devices={t.label: _record(t, reasons[t.label]) for t in self._targets},
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
            version=__version__,
        )
        self._files: list[str] = []

    def header(self) -> list[str]:
        """Return the text before the tests: devices, and excluded kernels."""
        left_out = [] if has_builtin() else [f"vkmnn shaders: {ABSENT}"]
        return left_out + [
            f"vkmnn shaders: {device.label} ({device.driver}), "
            + (f"NOT validated: {device.unvalidated}" if device.unvalidated else "validated")
            for device in self._results.devices.values()
        ]

    def add(self, found: Mapping[str, Any], outcome: str) -> None:
        """Add a test's report."""
        self._results.add(Entry(outcome=outcome, **found))

    def crashed(self, test: str, message: str) -> None:
        """Record a test that ended without a report; `test` ends in its name in brackets."""
        for target, variant in self._expected():
            if test.endswith(f"[{id_of(variant.name, target)}]"):
                self._results.add(_entry(target, variant, "failed", message))

    def finish(self, *, restricted: bool, say: Callable[[str], None]) -> bool:
        """Time the passed variants and write the files; `say` shows progress.

        Returns:
            False when a variant that the devices can run was not dispatched, although nothing was
            left out on purpose, or when there was nothing to run.
        """
        results = self._results
        if not results.entries:
            return False
        if not restricted:
            for target, variant in self._expected():
                if (target.label, variant.name) not in results.entries:
                    results.add(_entry(target, variant, "not run", ""))
        if self._settings.timed:
            for target in self._targets:
                self._time(target, say)
        self._write()
        return restricted or not any(map(results.undispatched, results.devices))

    def summary(self) -> list[str]:
        """Return the text after the tests."""
        if not self._results.entries:
            try:
                none = not self._settings.variants()
            except MissingExtraError as error:
                return [str(error)]
            wanted = " or ".join(self._settings.patterns)
            return [f"no kernel variant matches {wanted}"] if none else []
        return summary_lines(self._results) + self._files

    def _expected(self) -> list[tuple[Target, Variant]]:
        variants = self._variants()
        return [(target, variant) for target in self._targets for variant in variants]

    def _variants(self) -> list[Variant]:
        """Return the variants that this process knows; workers may have discovered more cases."""
        try:
            return self._settings.variants()
        except MissingExtraError:
            return []

    def _time(self, target: Target, say: Callable[[str], None]) -> None:
        results, label = self._results, target.label
        if not results.devices[label].timestamps:
            results.notes.append(f"{label} has no timestamps: nothing was timed")
            return
        variants = {v.name: v for v in self._variants()}
        jobs = [
            Job(variants[entry.variant], entry.largest["case"], entry.largest["picks"])
            for entry in results.of(label)
            if entry.outcome == "passed" and entry.largest and entry.variant in variants
        ]
        step = max(1, len(jobs) // 4)

        def progress(done: int) -> None:
            if done == len(jobs) or done // step > (done - 1) // step:
                say(f"{label}: {done} of {len(jobs)} variants timed")

        say("")
        try:
            times = measure(jobs, target.open(validation=False), progress)
        except VkmnnError as error:
            results.notes.append(f"{label}: timing stopped: {error}")
            return
        lost = [job.variant.name for job in jobs if job.variant.name not in times]
        if lost:
            results.notes.append(
                f"{label}: not timed, since their cases did not come again: {' '.join(lost)}"
            )
        self._compare(target, times)

    def _compare(self, target: Target, times: Mapping[str, Measured]) -> None:
        results = self._results
        key = device_key(target.info)
        before = self._baseline.of(key) if self._baseline else {}
        comparing = self._baseline is not None and not self._settings.update
        for name, time in times.items():
            entry = results.entries[target.label, name]
            against = compare(time, before.get(name)) if comparing else None
            results.add(dataclasses.replace(entry, time=time, against=against))
        if self._baseline and self._settings.update:
            self._baseline.update(key, times, {variant.name for variant in chosen_variants(())})
        elif comparing and not before:
            results.notes.append(
                f"the baseline has no times of {key}: add them with --vkmnn-perf-update"
            )

    def _write(self) -> None:
        settings = self._settings
        if self._baseline and settings.baseline:
            self._results.baseline = str(settings.baseline)
            if settings.update:
                self._baseline.save(settings.baseline)
                self._files.append(f"timing baseline: {settings.baseline}")
        if settings.results:
            self._results.save(settings.results)
            self._files.append(f"results: {settings.results}")
        if settings.report:
            from vkmnn.testing.report import write_report

            write_report(self._results, settings.report)
            self._files.append(f"report: {settings.report}")


def _check_files(settings: Settings) -> None:
    if settings.report:
        check_writable(settings.report, "--vkmnn-report")
        try:
            import jinja2  # noqa: F401 - said now, not after the tests
        except ImportError:
            raise InvalidInputError(
                "--vkmnn-report needs Jinja2", hint='pip install "vkmnn[codegen]"'
            ) from None
    if settings.results:
        check_writable(settings.results, "--vkmnn-results")
    if settings.update:
        if settings.baseline is None:
            raise InvalidInputError("--vkmnn-perf-update needs --vkmnn-perf-baseline FILE")
        check_writable(settings.baseline, "--vkmnn-perf-baseline")


def _load_baseline(settings: Settings) -> Baseline | None:
    path = settings.baseline
    if path is None:
        return None
    if settings.update and not path.exists():
        return Baseline()
    try:
        return Baseline.load(path)
    except InvalidInputError as error:
        hint = "--vkmnn-perf-update writes a new one"
        raise InvalidInputError(f"--vkmnn-perf-baseline: {error.message}", hint=hint) from error


def _record(target: Target, reason: str) -> DeviceRecord:
    info = target.info
    return DeviceRecord(
        label=target.label,
        driver=f"{info.driver_name} {info.driver_version}",
        type=info.type.value,
        api=".".join(map(str, info.api_version)),
        features=len(info.features),
        timestamps="timestamps" in info.features,
        unvalidated=reason,
    )


def _entry(target: Target, variant: Variant, outcome: str, message: str) -> Entry:
    return Entry(
        target.label, variant.name, variant.template, outcome, dict(variant.axes), message=message
    )
