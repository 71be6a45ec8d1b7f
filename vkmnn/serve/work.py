"""Work queues of a server: three kinds of jobs, each with its own thread."""

from __future__ import annotations

from vkmnn.llm.decoder import MAX_BATCH
from vkmnn.serve.turns import Turns


class Work:
    """Generation of texts, tokenising of long prompts, and embeddings.

    No kind waits for the steps of another. Long prompts are tokenised one after the other, so that
    only one takes memory at a time.

    Args:
        waiting: maximum waiting jobs of each kind.
    """

    def __init__(self, waiting: int) -> None:
        self.texts = Turns(waiting, MAX_BATCH, "vkmnn-serve")
        self.tokenising = Turns(waiting, 1, "vkmnn-serve-tokens")
        self.embedding = Turns(waiting, MAX_BATCH, "vkmnn-serve-vectors")

    def close(self) -> None:
        """Finish all jobs, then end the threads."""
        for turns in (self.tokenising, self.embedding, self.texts):
            turns.close()
