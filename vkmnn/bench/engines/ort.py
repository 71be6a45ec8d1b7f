"""onnxruntime on the CPU."""

from __future__ import annotations

from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.host.sessions import session_options
from vkmnn.ir import Array


class OnnxRuntime(Engine):
    """onnxruntime's CPU provider, with all its optimisations."""

    def load(self, job: Job) -> None:
        """Open a session."""
        try:
            import onnxruntime
        except ImportError as error:
            raise EngineMissingError(
                "onnxruntime is not installed", "pip install 'vkmnn[bench,peers]'"
            ) from error
        options = session_options(threads=job.threads)
        self._session = onnxruntime.InferenceSession(
            str(job.model), options, providers=["CPUExecutionProvider"]
        )
        self._feeds = dict(job.feeds)

    def run(self) -> list[Array]:
        """Run once."""
        results: list[Array] = self._session.run(None, self._feeds)
        return results
