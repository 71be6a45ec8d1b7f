"""Print the lines of text in a picture: a program written for onnxruntime.

pip install rapidocr-onnxruntime
python examples/ocr.py receipt.png                         on onnxruntime
python -m vkmnn.onnxruntime examples/ocr.py receipt.png    on a Vulkan device, unchanged
"""

from __future__ import annotations

import sys

from rapidocr_onnxruntime import RapidOCR


def main(picture: str) -> None:
    """Find the lines, read them, and print each with its score."""
    lines, _ = RapidOCR()(picture)
    for _box, text, score in lines or ():
        print(f"{float(score):.2f}  {text}")


if __name__ == "__main__":
    main(sys.argv[1])
