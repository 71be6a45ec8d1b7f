"""Work queues of a server: three kinds of jobs, each with its own thread."""

from __future__ import annotations

from collections.abc import Callable

from vkmnn.llm import Generated
from vkmnn.llm.decoder import MAX_BATCH
from vkmnn.serve.turns import Turns


class Work:
    """Generation of texts, tokenising of long prompts, grammars, embeddings and other tasks.

    No kind waits for the steps of another. Long prompts are tokenised one after the other, so that
    only one takes memory at a time, and grammars are compiled one after the other.

    Args:
        waiting: maximum waiting jobs of each kind.
        texts: returns the maximum texts that are generated at a time. Texts take turns on one
            thread, so every model must take as many.
    """

    def __init__(self, waiting: int, texts: Callable[[], int] = lambda: MAX_BATCH) -> None:
        self.texts = Turns(waiting, texts, "vkmnn-serve", left=_prompt_left)
        self.tokenising = Turns(waiting, 1, "vkmnn-serve-tokens")
        self.embedding = Turns(waiting, MAX_BATCH, "vkmnn-serve-vectors")

        self.compiling = Turns(waiting, 1, "vkmnn-serve-grammars")
        self.ranking = Turns(waiting, MAX_BATCH, "vkmnn-serve-ranking")
        self.sounds = Turns(waiting, MAX_BATCH, "vkmnn-serve-sounds")
        self.images = Turns(waiting, 1, "vkmnn-serve-images")

        first = (self.tokenising, self.compiling)  # texts follow from their jobs
        others = (self.embedding, self.ranking, self.sounds, self.images)
        self._all = (*first, *others, self.texts)

    async def settled(self) -> None:
        """Wait until jobs that have been cancelled do nothing more."""
        for turns in self._all:
            await turns.settled()

    def close(self) -> None:
        """Finish all jobs, then end the threads."""
        for turns in self._all:
            turns.close()


def _prompt_left(event: tuple[int, Generated, str, int]) -> int:
    """Return how many tokens of its prompt a text has not run yet; see `texts.Texts`."""
    return event[1].prompt_left
