"""A hub of datasets on this machine's loopback address, as the hub's own client speaks to it, with failures on demand.

It serves the folders below a root: `root/owner/name` is a dataset. Listings come in pages of two, files from another
address than the one that is asked for, as on the hub. `/files/PATH` is a file of the root by itself.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
PAGE = 2
MOST_REQUESTS = 1000  # a client that never gives up fails here


class HubServer(ThreadingHTTPServer):
    """The server, and what was asked of it.

    Attributes:
        requests: (kind, dataset, revision, path) in order; the kinds are "list", "look" (HEAD) and "file".
        faults: What is wrong with the next requests of a kind: a status such as 503, or "cut", a connection that ends
            halfway.
        always: What is wrong with all requests of a kind.
        starts: The byte that each request for a file began with.
    """

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[tuple[str, str, str, str]] = []
        self.faults: dict[str, list[int | str]] = defaultdict(list)
        self.always: dict[str, int | str] = {}
        self.starts: list[int] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def asked(self, kind: str) -> list[str]:
        """Paths of the requests of a kind."""
        return [request[3] for request in self.requests if request[0] == kind]


class _Handler(BaseHTTPRequestHandler):
    server: HubServer

    def do_HEAD(self) -> None:
        """Where a file lies, its size and its tag."""
        _, owner, name, _, revision, path = unquote(urlsplit(self.path).path)[1:].split("/", 5)
        if self._fault("look", f"{owner}/{name}", revision, path):
            return
        file = self.server.root / owner / name / path
        if not file.is_file():
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        headers = {"X-Repo-Commit": COMMIT, "X-Linked-Etag": f'"{_tag(file)}"', "X-Linked-Size": file.stat().st_size}
        place = f"http://localhost:{self.server.server_port}/files/{owner}/{name}/{path}"  # another host to the client
        self._answer(302, {**headers, "Location": place})

    def do_GET(self) -> None:
        """A page of a listing, or a file from where its reader has got to."""
        url = urlsplit(self.path)
        path = unquote(url.path)[1:]
        if path.startswith("files/"):
            self._file(path.removeprefix("files/"))
        elif not path.startswith("api/datasets/"):  # the client also looks for news of itself
            self._answer(404, {})
        else:
            _, _, owner, name, _, revision, *folder = path.split("/", 6)
            self._listing(f"{owner}/{name}", revision, "".join(folder), int(parse_qs(url.query).get("cursor", "0")[0]))

    def _listing(self, dataset: str, revision: str, folder: str, start: int) -> None:
        if self._fault("list", dataset, revision, folder):
            return
        root = self.server.root / dataset
        if not root.is_dir():
            return self._answer(404, {"X-Error-Code": "RepoNotFound"})
        if revision == "none":
            return self._answer(404, {"X-Error-Code": "RevisionNotFound"})
        if not (root / folder).is_dir():
            return self._answer(404, {"X-Error-Code": "EntryNotFound"})
        paths = sorted((root / folder).rglob("*"))
        page = [_entry(path, root) for path in paths[start : start + PAGE]]
        url = f"{self.server.address}/api/datasets/{dataset}/tree/{revision}/{folder}?recursive=true"
        more = {"Link": f'<{url}&cursor={start + PAGE}>; rel="next"'} if start + PAGE < len(paths) else {}
        self._answer(200, {**more, "Content-Type": "application/json"}, json.dumps(page).encode())

    def _file(self, path: str) -> None:
        dataset, name = "/".join(path.split("/")[:2]), "/".join(path.split("/")[2:])
        if not (self.server.root / path).is_file():
            return self._answer(404, {})
        content = (self.server.root / path).read_bytes()
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self.server.starts.append(start)
        if self._fault("file", dataset, COMMIT, name, content[start:]):
            return
        content_range = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        self._answer(206 if start else 200, content_range, content[start:])

    def _fault(self, kind: str, dataset: str, revision: str, path: str, content: bytes = b"[]") -> bool:
        """Notes the request, and whether it was answered with a fault."""
        self.server.requests.append((kind, dataset, revision, path))
        waiting = self.server.faults[kind]
        fault = waiting.pop(0) if waiting else self.server.always.get(kind)
        if len(self.server.requests) > MOST_REQUESTS:
            fault = 400
        if fault == "cut":
            if kind != "look":
                status = 206 if "Range" in self.headers else 200
                self._answer(status, {"Content-Length": len(content)}, content[: len(content) // 2])
            self.close_connection = True
        elif isinstance(fault, int):
            self._answer(fault, {})
        return fault is not None

    def _answer(self, status: int, headers: dict[str, object], content: bytes = b"") -> None:
        self.send_response(status)
        for key, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(key, str(value))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


def _tag(file: Path) -> str:
    status = file.stat()
    return f"{status.st_size:x}-{status.st_mtime_ns:x}"


def _entry(path: Path, root: Path) -> dict[str, object]:
    name = path.relative_to(root).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": "0", "size": 0}
    return {"type": "file", "path": name, "oid": _tag(path), "size": path.stat().st_size}


@contextmanager
def serve(root: Path) -> Iterator[HubServer]:
    """The server of a folder, for the time of the block."""
    with HubServer(root) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A hub of the datasets below tmp_path/"hub", in place of the public one."""
    import huggingface_hub.constants

    (tmp_path / "hub").mkdir()
    with serve(tmp_path / "hub") as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.address)
        template = f"{server.address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "DOWNLOAD_CHUNK_SIZE", 1024)  # what is kept of a cut download
        yield server
