"""FlatBuffers by schema: a reader that checks every access, and a writer.

The schemas are the `.fbs` files next to this module; each is read when the first file of its kind
is.
"""

from __future__ import annotations

from vkmnn.schema.language import Field, Schema, load_schema
from vkmnn.schema.reader import Buffer, Table
from vkmnn.schema.writer import write

__all__ = ["Buffer", "Field", "Schema", "Table", "load_schema", "write"]
