"""Base class of pipelines with one text network."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Generic, TypeVar

from vkmnn.pipelines.arrays import Array
from vkmnn.pipelines.base import Pipeline, Settings
from vkmnn.pipelines.networks import Loaded
from vkmnn.pipelines.options import Check, Options, is_flag
from vkmnn.pipelines.results.result import Result
from vkmnn.pipelines.texts.text_network import TextNetwork

ResultT = TypeVar("ResultT", bound=Result[Any])


class TextPipeline(Pipeline, Generic[ResultT]):
    """A pipeline with one text network.

    Args:
        loaded: the network.
        options: the options.
    """

    own: ClassVar[tuple[str, ...]] = ("truncate",)
    checks: ClassVar[Mapping[str, Check]] = {"truncate": is_flag}

    def __init__(self, loaded: Loaded, options: Options) -> None:
        super().__init__(options)
        self.about = loaded.about
        self.network = TextNetwork(loaded, options)
        self.settings = {"truncate": options.take("truncate", False)}

    @property
    def device(self) -> str:
        """The name of the device."""
        return self.network.session.device.name

    def __call__(self, inputs: Any, **settings: Any) -> Any:
        """Return the result for a text, or a list of them for a list of texts.

        Args:
            inputs: a text, or a list of them.
            settings: see `settings`.

        Raises:
            InvalidInputError: a text is empty or too long, or a setting is unknown.
        """
        chosen = self.chosen(settings)
        if not isinstance(inputs, list | tuple):
            return self._result(inputs, chosen)
        return [self._result(one, chosen) for one in inputs]

    def _result(self, text: Any, chosen: Settings) -> ResultT:
        outputs, kept = self.network.run(text, chosen["truncate"])
        return self.result(outputs, kept, chosen)

    def feeds(self, text: str) -> dict[str, Array]:
        """Return the network's inputs for a text, whose end is cut off if it is too long.

        Raises:
            InvalidInputError: the text is empty.
        """
        return self.network.feeds(text, truncate=True)[0]

    @abstractmethod
    def result(self, outputs: Mapping[str, Array], kept: Array, chosen: Settings) -> ResultT:
        """Return the result for the outputs of a run.

        Args:
            outputs: the outputs by name.
            kept: mask of the rows that are tokens of the text, bool [tokens].
            chosen: the settings.
        """

    def close(self) -> None:
        """Release device memory; the pipeline cannot be used afterwards."""
        self.network.close()
