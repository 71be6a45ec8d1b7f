"""onnxruntime on the CPU."""

from __future__ import annotations

from vkmnn.bench.engine import Engine, EngineMissingError, Job
from vkmnn.host.exact_codes import lacks_zero_points
from vkmnn.host.sessions import session_options
from vkmnn.ir import Array


class OnnxRuntime(Engine):
    """onnxruntime's CPU provider, with all its optimisations."""

    def load(self, job: Job) -> None:
        """Open a session."""
        try:
            import onnx
            import onnxruntime
        except ImportError as error:
            raise EngineMissingError(
                "onnxruntime is not installed", "pip install 'vkmnn[bench,peers]'"
            ) from error
        bare = onnx.load(job.model, load_external_data=False)
        options = session_options(threads=job.threads, exact_sums=not lacks_zero_points(bare))
        self._session = onnxruntime.InferenceSession(
            str(job.model), options, providers=["CPUExecutionProvider"]
        )
        self._feeds = dict(job.feeds)

    def run(self) -> list[Array]:
        """Run once."""
        results: list[Array] = self._session.run(None, self._feeds)
        return results
