"""Many items: sessions on several devices, overlapped reading and running, resumable jobs."""

from __future__ import annotations

from vkmnn.batch.flow import Failed
from vkmnn.batch.pool import SessionPool

__all__ = ["Failed", "SessionPool"]
