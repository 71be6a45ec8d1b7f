"""Bodies of requests that are forms (multipart/form-data)."""

from __future__ import annotations

import importlib
import logging
from collections.abc import AsyncGenerator

from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from vkmnn.base.extras import need
from vkmnn.serve.limits import HttpError

logging.getLogger("python_multipart").setLevel(logging.CRITICAL)  # clients could fill the log

_FILES, _FIELDS, _FIELD_BYTES = 1, 32, 1 << 16


class _Parser(MultiPartParser):
    """Starlette's parser, which would accept a form that breaks off."""

    complete = False

    def on_end(self) -> None:
        """The boundary at the end has been read."""
        self.complete = True


async def form_of(request: Request, body: bytes) -> tuple[dict[str, str], dict[str, bytes]]:
    """Return the fields of a form and its files, both by name; names of files are ignored.

    Raises:
        HttpError: the body is no form, or has too many parts.
        MissingExtraError: `python-multipart` is not installed.
    """
    need("python_multipart", "reading forms", "serve")
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        text = "the body is not multipart/form-data"
        raise HttpError(400, "invalid_form", text)

    async def stream() -> AsyncGenerator[bytes, None]:
        for start in range(0, len(body), 1 << 18):
            yield body[start : start + (1 << 18)]
        yield b""

    parser = _Parser(
        request.headers, stream(), max_files=_FILES, max_fields=_FIELDS, max_part_size=_FIELD_BYTES
    )
    errors = importlib.import_module("python_multipart.exceptions")
    fields, files = dict[str, str](), dict[str, bytes]()
    try:
        form = await parser.parse()
        try:
            if not parser.complete:
                raise MultiPartException("its end is missing")
            for name, value in form.multi_items():
                if isinstance(value, UploadFile):
                    files[name] = await value.read()
                else:
                    fields[name] = value
        finally:
            await form.close()
    except (MultiPartException, errors.FormParserError, KeyError, UnicodeError) as error:
        text = getattr(error, "message", str(error))[:200]
        raise HttpError(400, "invalid_form", f"the form cannot be read: {text}") from error
    return fields, files
