"""What a server works on: three kinds of jobs, each with a thread of its own."""

from __future__ import annotations

from vkmnn.llm.language_model import SEQUENCES
from vkmnn.serve.turns import Turns


class Work:
    """Texts that are generated, long prompts that are cut into tokens, requests for embeddings.

    They are apart so that none of them waits for another's steps, and long prompts are cut one
    after the other, so that the memory that this takes is that of one.

    Args:
        waiting: how many of each may wait.
    """

    def __init__(self, waiting: int) -> None:
        self.texts = Turns(waiting, SEQUENCES, "vkmnn-serve")
        self.tokenising = Turns(waiting, 1, "vkmnn-serve-tokens")
        self.embedding = Turns(waiting, SEQUENCES, "vkmnn-serve-vectors")

    def close(self) -> None:
        """Finish what has been started, then stop."""
        for turns in (self.tokenising, self.embedding, self.texts):
            turns.close()
