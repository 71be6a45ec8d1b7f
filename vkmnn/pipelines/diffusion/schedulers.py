"""Schedulers by their class in diffusers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from vkmnn.base.config_file import Section, read_config
from vkmnn.errors import InvalidInputError, ModelFileError, nearest
from vkmnn.pipelines.diffusion.multistep_samplers import DpmSolver, UniPc
from vkmnn.pipelines.diffusion.noise import CLIPPING, TRAINING, UNSUPPORTED
from vkmnn.pipelines.diffusion.sampler import Sampler
from vkmnn.pipelines.diffusion.sigma_samplers import Euler, EulerAncestral, Heun, Lms
from vkmnn.pipelines.diffusion.variance_samplers import Ddim, Ddpm, Lcm, Pndm

SCHEDULERS: Mapping[str, type[Sampler]] = {
    "DDIMScheduler": Ddim,
    "DDPMScheduler": Ddpm,
    "PNDMScheduler": Pndm,
    "LMSDiscreteScheduler": Lms,
    "EulerDiscreteScheduler": Euler,
    "EulerAncestralDiscreteScheduler": EulerAncestral,
    "HeunDiscreteScheduler": Heun,
    "DPMSolverMultistepScheduler": DpmSolver,
    "UniPCMultistepScheduler": UniPc,
    "LCMScheduler": Lcm,
}
"""Samplers by `_class_name`."""
SHORT: Mapping[str, str] = {
    "ddim": "DDIMScheduler",
    "ddpm": "DDPMScheduler",
    "pndm": "PNDMScheduler",
    "lms": "LMSDiscreteScheduler",
    "euler": "EulerDiscreteScheduler",
    "euler-ancestral": "EulerAncestralDiscreteScheduler",
    "heun": "HeunDiscreteScheduler",
    "dpm++": "DPMSolverMultistepScheduler",
    "unipc": "UniPCMultistepScheduler",
    "lcm": "LCMScheduler",
}
"""Short names for the option `scheduler`."""

_KNOWN = {key for kind in SCHEDULERS.values() for key in kind.own} | set(TRAINING) | set(CLIPPING)
_KNOWN |= set(UNSUPPORTED) | {"flow_shift", "time_shift_type"}  # without effect by themselves


class Scheduler:
    """The scheduler of a folder.

    Args:
        folder: the folder `scheduler`.
        chosen: the name of another scheduler, which takes the options of the folder's.
        tell: called with a sentence on options that are not known.

    Raises:
        InvalidInputError: there is no such scheduler.
        ModelFileError: scheduler_config.json is missing or damaged.
    """

    def __init__(self, folder: Path, chosen: str | None, tell: Callable[[str], object]) -> None:
        path = folder / "scheduler_config.json"
        if not path.is_file():
            raise ModelFileError(f"'{path}' is missing", hint="download the whole folder")
        self.section: Section = read_config(path)
        said = self.section.text("_class_name")
        self.name = scheduler_name(chosen) if chosen else said
        if self.name not in SCHEDULERS:
            raise InvalidInputError(
                f"'{path}' names the scheduler '{self.name}', which is not known",
                hint=f"choose another: scheduler={', '.join(SHORT)}",
            )
        unknown = [key for key in self.section.keys() if key not in _KNOWN and key[0] != "_"]  # noqa: SIM118
        if unknown and self.name == said:
            tell(f"'{path}': options that are not known are ignored: {', '.join(unknown)}")

    def sampler(self, steps: int, strength: float = 1.0) -> Sampler:
        """Return a sampler for a generation of some steps; see `Sampler`."""
        return SCHEDULERS[self.name](self.section, steps, strength)


def scheduler_name(name: str) -> str:
    """Return the class of a scheduler by its short name or the class itself.

    Raises:
        InvalidInputError: there is no such scheduler.
    """
    found = SHORT.get(name.lower().replace("_", "-"), name)
    if found not in SCHEDULERS:
        hint = nearest(name, (*SHORT, *SCHEDULERS), "schedulers")
        raise InvalidInputError(f"there is no scheduler '{name}'", hint=hint)
    return found
