"""A server of files and a hub on this machine, and caches as huggingface_hub lays them out."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "c" * 40


def cache_repository(
    home: Path, name: str, files: Mapping[str, bytes], commit: str = COMMIT, revision: str = "main"
) -> Path:
    """Lay out a commit of a repository as huggingface_hub's cache has it; return its snapshot."""
    repository = home / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = repository / "snapshots" / commit
    for path, content in files.items():
        blob = repository / "blobs" / hashlib.sha256(content).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        link = snapshot / path
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(blob)
    (repository / "refs").mkdir(exist_ok=True)
    (repository / "refs" / revision).write_text(commit, "utf-8")
    return snapshot


@dataclass
class Site:
    """What the server has, and what it was asked for.

    Attributes:
        address: where it is.
        files: contents by path, such as "/m.onnx"; a text redirects there.
        repositories: of the hub, files by path.
        commits: their commits by revision.
        cut: paths whose content ends early.
        asked: requests, as "GET /path".
        tokens: what was sent as Authorization.
    """

    address: str = ""
    files: dict[str, bytes | str] = field(default_factory=dict)
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    commits: dict[str, str] = field(default_factory=lambda: {"main": COMMIT})
    cut: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    tokens: set[str] = field(default_factory=set)

    @property
    def fetched(self) -> list[str]:
        """The files of repositories whose content was sent."""
        return sorted(
            one.partition("/resolve/")[2].partition("/")[2]
            for one in self.asked
            if one.startswith("GET ") and "/resolve/" in one
        )


@contextmanager
def serving() -> Iterator[Site]:
    """Serve files and repositories on a port of this machine."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

        def do_GET(self) -> None:
            self._answer(True)

        def do_HEAD(self) -> None:
            self._answer(False)

        def _answer(self, with_body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            site.asked.append(f"{self.command} {path}")
            if token := self.headers.get("Authorization"):
                site.tokens.add(token)
            if path.startswith("/api/models/"):
                return self._api(path.removeprefix("/api/models/"))
            found, extra = site.files.get(path), {}
            if "/resolve/" in path:
                name, _, rest = path[1:].partition("/resolve/")
                found = site.repositories.get(name, {}).get(rest.partition("/")[2])
                extra["X-Repo-Commit"] = COMMIT
            if isinstance(found, str):
                return self._send(302, b"", {"Location": found}, with_body)
            if found is None:
                return self._send(404, b"Not Found", {"X-Error-Code": "EntryNotFound"}, with_body)
            extra["ETag"] = f'"{hashlib.sha256(found).hexdigest()}"'
            return self._send(200, found, extra, with_body, cut=path in site.cut)

        def _api(self, path: str) -> None:
            parts = path.split("/")
            files = site.repositories.get("/".join(parts[:2]))
            revision = parts[3] if len(parts) > 3 else "main"
            commit = site.commits.get(revision) or (revision if revision == COMMIT else None)
            if files is None or commit is None:
                code = "RepoNotFound" if files is None else "RevisionNotFound"
                return self._send(404, b"{}", {"X-Error-Code": code}, True)
            listed = [
                {"rfilename": one, "path": one, "type": "file", "size": len(content), "oid": "1"}
                for one, content in files.items()
            ]
            made: object = listed
            if parts[2:3] != ["tree"]:
                made = {"id": "/".join(parts[:2]), "sha": commit, "siblings": listed}
            return self._send(200, json.dumps(made).encode(), {}, True)

        def _send(
            self,
            status: int,
            body: bytes,
            headers: Mapping[str, str],
            with_body: bool,
            cut: bool = False,
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body[: len(body) // 2] if cut else body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    site.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
