"""Which models are served: the model repository extension of the Open Inference Protocol."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from vkmnn.serve.limits import Bodies, HttpError, field
from vkmnn.serve.repository import Repository
from vkmnn.serve.routes import Row


class RepositoryApi:
    """The routes under /v2/repository."""

    def __init__(self, repository: Repository | None, bodies: Bodies) -> None:
        self._repository = repository
        self._bodies = bodies

    def routes(self) -> list[Row]:
        """Return the rows of the route table."""
        model = "/v2/repository/models/{name}"
        return [
            Row("/v2/repository/index", self.index, "POST", "the models of the repository", {}),
            Row(f"{model}/load", self.load, "POST", "load a model, or its changed files", {}),
            Row(f"{model}/unload", self.unload, "POST", "unload a model", {}),
        ]

    async def index(self, request: Request) -> Response:
        """POST /v2/repository/index."""
        body = await self._body(request)
        return JSONResponse(self.shelved().index(bool(field(body, "ready", (bool,), False))))

    async def load(self, request: Request) -> Response:
        """POST /v2/repository/models/NAME/load."""
        body = await self._body(request)
        refuse_overrides(field(body, "parameters", (dict,), {}))
        await self.controlled().load(request.path_params["name"])
        return JSONResponse({})

    async def unload(self, request: Request) -> Response:
        """POST /v2/repository/models/NAME/unload."""
        await self._body(request)
        await self.controlled().unload(request.path_params["name"])
        return JSONResponse({})

    def shelved(self) -> Repository:
        """Return the repository.

        Raises:
            HttpError: there is none.
        """
        if self._repository is None:
            text = "the models are those of the command line; --repository FOLDER serves a folder"
            raise HttpError(403, "no_repository", text)
        return self._repository

    def controlled(self) -> Repository:
        """Return the repository if requests may change what is served.

        Raises:
            HttpError: they may not.
        """
        repository = self.shelved()
        if repository.shelf.control != "explicit":
            text = "requests cannot load or unload models: --model-control explicit allows it"
            raise HttpError(403, "model_control_off", text)
        return repository

    async def _body(self, request: Request) -> dict[str, object]:
        async with self._bodies.received(request) as body:
            return await self._bodies.read(body) if body.strip() else {}


def refuse_overrides(parameters: object) -> None:
    """Raise HttpError if a request to load a model brings files or a configuration."""
    names = [name for name in parameters if name != "unload_dependents"] if parameters else []  # type: ignore[attr-defined]
    if names:
        text = f"'{str(names[0])[:100]}' is not supported: models are loaded from the repository"
        raise HttpError(400, "unsupported_field", text)
