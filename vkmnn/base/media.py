"""Suffixes of files that hold images, videos and sounds."""

from __future__ import annotations

from pathlib import Path

PICTURES = frozenset(
    {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".heic",
     ".avif", ".jp2", ".tga"}
)  # fmt: skip
FILMS = frozenset({".mp4", ".mov", ".mkv", ".avi", ".webm", ".m4v", ".mpg", ".mpeg"})
SOUNDS = frozenset({".wav", ".mp3", ".flac", ".ogg", ".m4a", ".opus"})


def has_suffix(path: str | Path, suffixes: frozenset[str]) -> bool:
    """Return whether a file's name ends in one of these."""
    return Path(path).suffix.lower() in suffixes
