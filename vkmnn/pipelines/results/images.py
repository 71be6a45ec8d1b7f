"""Images that a network paints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.pictures import Picture, pil
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    from PIL import Image


class Images(Result[Any]):
    """Images for a prompt; the items are PIL images.

    Args:
        pixels: uint8 [height, width, 3] each, of the same size.
        seeds: the seed of each.
        picture: the image that they started from.

    Attributes:
        pixels: uint8 [n, height, width, 3].
        seeds: the seed of each image.
    """

    columns = ("image", "seed")
    suffix = ".png"

    def __init__(
        self, pixels: Sequence[Array], seeds: Sequence[int], picture: Picture | None = None
    ) -> None:
        super().__init__([pil().fromarray(one) for one in pixels], picture)
        self.pixels = np.stack(pixels)
        self.seeds = list(seeds)

    @property
    def images(self) -> list[Image.Image]:
        """The images."""
        return self.items

    def rows(self) -> list[tuple[str, ...]]:
        """Return size and seed of each."""
        return [
            (f"{one.width}×{one.height}", str(seed))
            for one, seed in zip(self.items, self.seeds, strict=True)
        ]

    def to_dict(self) -> list[dict[str, Any]]:
        """Return size, [height, width], and seed of each."""
        return [
            {"size": [one.height, one.width], "seed": seed}
            for one, seed in zip(self.items, self.seeds, strict=True)
        ]

    def arrays(self) -> dict[str, Array]:
        """Return `pixels` and `seeds`."""
        return {"pixels": self.pixels, "seeds": np.array(self.seeds)}

    def draw(self) -> Image.Image:
        """Return the image, or several side by side."""
        made: Image.Image = pil().fromarray(np.concatenate(list(self.pixels), 1))
        return made
