"""The state of the machine that explains times: driver, clocks, temperature, power."""

from __future__ import annotations

import shutil
import subprocess

_FIELDS = {
    "driver_version": "driver",
    "clocks.sm": "multiprocessors, MHz",
    "clocks.max.sm": "at most, MHz",
    "clocks.mem": "memory, MHz",
    "temperature.gpu": "°C",
    "power.draw": "W",
    "pstate": "state",
    "clocks_throttle_reasons.active": "reasons to slow down",
}
_TIMEOUT_S = 10


def machine_state() -> dict[str, str]:
    """Return what `nvidia-smi` tells about the first GPU; empty without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={','.join(_FIELDS)}", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = told.stdout.splitlines() or [""]
    values = [value.strip() for value in lines[0].split(",")]
    return dict(zip(_FIELDS.values(), values, strict=False)) if any(values) else {}
