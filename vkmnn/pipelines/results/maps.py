"""Results that are images themselves: depth, mattes, enlarged images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.pictures import Picture, pil
from vkmnn.pipelines.results.labels import drawn
from vkmnn.pipelines.results.result import Result

if TYPE_CHECKING:
    from PIL import Image

_STOPS = ((0, 0, 4), (87, 16, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164))
"""Colours from the lowest to the highest value, dark to light."""


class Depth(Result[float]):
    """The depth of each pixel, or its inverse, as the network returns it.

    Attributes:
        depth: float32 [height, width] of the image.
    """

    columns = ("value", "number")

    def __init__(self, depth: Array, picture: Picture | None = None) -> None:
        super().__init__([float(depth.min()), float(depth.mean()), float(depth.max())], picture)
        self.depth = depth

    def rows(self) -> list[tuple[str, ...]]:
        """Return the minimum, mean and maximum."""
        names = ("least", "mean", "greatest")
        return [(name, f"{one:.4g}") for name, one in zip(names, self.items, strict=True)]

    def to_dict(self) -> dict[str, Any]:
        """Return the size, minimum, mean and maximum."""
        least, mean, greatest = self.items
        return {"size": list(self.depth.shape), "min": least, "mean": mean, "max": greatest}

    def arrays(self) -> dict[str, Array]:
        """Return `depth`."""
        return {"depth": self.depth}

    def draw(self) -> Image.Image:
        """Return the values as colours, dark for the lowest."""
        span = self.items[2] - self.items[0]
        parts = (self.depth - self.items[0]) / (span or 1)
        at = np.linspace(0, 1, len(_STOPS))
        colours = [np.interp(parts, at, [stop[n] for stop in _STOPS]) for n in range(3)]
        made: Image.Image = pil().fromarray(np.stack(colours, -1).astype(np.uint8))
        return made


class Matte(Result[float]):
    """The opacity of each pixel: how much of it is foreground.

    Attributes:
        alpha: float32 [height, width] of the image, from 0 to 1.
        foreground: uint8 [height, width, 3], the colours without the background; None if the
            network does not compute them, and the image's own are drawn.
    """

    columns = ("foreground",)

    def __init__(
        self, alpha: Array, picture: Picture | None = None, foreground: Array | None = None
    ) -> None:
        super().__init__([float(alpha.mean())], picture)
        self.alpha = alpha
        self.foreground = foreground

    def rows(self) -> list[tuple[str, ...]]:
        """Return the fraction of foreground."""
        return [(f"{self.items[0]:.1%}",)]

    def to_dict(self) -> dict[str, Any]:
        """Return the size and the fraction of foreground."""
        return {"size": list(self.alpha.shape), "foreground": round(self.items[0], 6)}

    def arrays(self) -> dict[str, Array]:
        """Return `alpha`, and `foreground` if the network computes it."""
        more = {} if self.foreground is None else {"foreground": self.foreground}
        return {"alpha": self.alpha, **more}

    def draw(self) -> Image.Image:
        """Return the foreground on a transparent background."""
        alpha = np.rint(self.alpha * 255).astype(np.uint8)
        colours = drawn(self).pixels if self.foreground is None else self.foreground
        pixels = np.concatenate([colours, alpha[:, :, None]], 2)
        made: Image.Image = pil().fromarray(pixels)
        return made


class Enlarged(Result[int]):
    """The output image of a network.

    Attributes:
        pixels: uint8 [height, width, 3].
    """

    columns = ("rows", "columns")

    def __init__(self, pixels: Array, picture: Picture | None = None) -> None:
        super().__init__([int(side) for side in pixels.shape[:2]], picture)
        self.pixels = pixels

    def rows(self) -> list[tuple[str, ...]]:
        """Return the size."""
        return [tuple(map(str, self.items))]

    def to_dict(self) -> dict[str, Any]:
        """Return the size."""
        return {"size": self.items}

    def arrays(self) -> dict[str, Array]:
        """Return `pixels`."""
        return {"pixels": self.pixels}

    def draw(self) -> Image.Image:
        """Return the image."""
        made: Image.Image = pil().fromarray(self.pixels)
        return made


class Embedding(Result[float]):
    """A vector that represents an image or a text: similar inputs have similar vectors.

    Attributes:
        vector: float32 [n], of length 1.
    """

    columns = ("numbers", "first")

    def __init__(self, vector: Array, picture: Picture | None = None) -> None:
        super().__init__(vector.tolist(), picture)
        self.vector = vector

    def rows(self) -> list[tuple[str, ...]]:
        """Return the number of elements, and the first of them."""
        return [(str(len(self.vector)), ", ".join(f"{one:.4f}" for one in self.vector[:6]) + " …")]

    def arrays(self) -> dict[str, Array]:
        """Return `vector`."""
        return {"vector": self.vector}

    def similarity(self, other: Embedding) -> float:
        """Return the cosine similarity to another embedding: 1 for the same direction."""
        return float(self.vector @ other.vector)
