"""Errors and messages of torch's exporters."""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from vkmnn.errors import ConversionError, VkmnnError

_LOGS = ("torch.onnx", "onnxscript", "onnx_ir")
_MISSING = re.compile(r"No ONNX function found for.*?<OpOverload\(op='([\w.]+)'")


@contextmanager
def exporting(what: str) -> Iterator[None]:
    """Turn errors of torch's exporters into typed ones; keep their warnings and lines quiet."""
    logs = [logging.getLogger(name) for name in _LOGS]
    levels = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (VkmnnError, MemoryError):
        raise
    except Exception as error:
        texts: list[str] = []
        cause: BaseException | None = error
        while cause is not None and len(texts) < 8:
            texts.append(str(cause))
            cause = cause.__cause__ or cause.__context__
        if (missing := _MISSING.search("\n".join(texts))) is not None:
            raise ConversionError(
                f"PyTorch's exporter has no form in ONNX for the operator {missing[1]}",
                op=missing[1],
                hint="write the module without it, or give torch.library a decomposition of it",
            ) from error
        line = next((line for line in texts[-1].splitlines() if line.strip()), "")
        raise ConversionError(
            f"PyTorch's exporter refuses {what}: {type(error).__name__}: {line.strip()[:300]}",
            hint="the error below this one says where; torch.onnx.export(model, args, "
            "dynamo=True, report=True) writes a report",
        ) from error
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.setLevel(level)
