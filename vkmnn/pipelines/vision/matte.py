"""Mattes: the class for a network, by its inputs."""

from __future__ import annotations

from vkmnn.pipelines.base import Pipeline
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.trimap_input import takes_trimap
from vkmnn.pipelines.vision.cut_out import CutOut
from vkmnn.pipelines.vision.recurrent_matte import RecurrentCutOut, states_of
from vkmnn.pipelines.vision.trimap import CutOutByTrimap


class Matting(CutOut):
    """Cuts the foreground out of images, with whatever else the network takes."""

    @classmethod
    def variant(cls, loaded: Loaded) -> type[Pipeline]:
        """Return the class for networks with a trimap or with recurrent states."""
        if takes_trimap(loaded):
            return CutOutByTrimap
        return RecurrentCutOut if states_of(loaded) else cls
