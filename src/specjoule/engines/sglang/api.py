"""The server's control endpoints, none of which generates; `/health` does and is never called."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any

from specjoule.engines.base import EngineBug
from specjoule.engines.sglang.fields import Loads, ServerInfo, need, read_loads, read_server_info
from specjoule.engines.sglang.ports import HOST


class Unanswered(Exception):
    """The server gave no answer: not listening, gone, or silent."""


class ControlApi:
    """Blocking calls with a deadline each, on the loopback."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        self.port = port
        self.timeout_s = timeout_s

    @property
    def generate_url(self) -> str:
        """Where waves are posted."""
        return f"http://{HOST}:{self.port}/generate"

    def ready(self) -> bool:
        """Say whether the server takes requests (`/ready`, which generates nothing)."""
        try:
            return self._call("GET", "/ready", timeout_s=5.0)[0] == 200
        except Unanswered:
            return False

    def server_info(self) -> ServerInfo:
        """Return resolved arguments and capacity."""
        return read_server_info(self._json("GET", "/server_info"))

    def loads(self) -> Loads:
        """Return the cumulative counters and what runs now."""
        return read_loads(self._json("GET", "/v1/loads?include=core,memory,spec"))

    def flush(self) -> bool:
        """Empty prefix cache and n-gram trie; False while requests run or wait."""
        return self._call("POST", "/flush_cache")[0] == 200

    def start_profile(self, folder: str) -> None:
        """Start a torch profile that is written into a folder of this machine."""
        body = {"output_dir": folder, "activities": ["CPU", "GPU"], "with_stack": False, "record_shapes": False}
        status, text = self._call("POST", "/start_profile", body)
        if status != 200:
            raise EngineBug(f"/start_profile answered {status}: {text[:300]!r}")

    def stop_profile(self) -> None:
        """End it; the answer comes when the trace is written."""
        self._call("POST", "/stop_profile", timeout_s=120.0)

    def chat_ids(self, messages: list[dict[str, str]], template_kwargs: Mapping[str, Any]) -> list[int]:
        """Return the token ids of a chat under the server's own template."""
        body: dict[str, Any] = {"messages": messages}
        if template_kwargs:
            body["chat_template_kwargs"] = dict(template_kwargs)
        answer = self._json("POST", "/tokenize", body)
        ids = need("/tokenize", answer, "tokens", list)
        if not ids or not all(isinstance(i, int) for i in ids):
            raise EngineBug("/tokenize: 'tokens' is not a list of token ids")
        return list(ids)

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        status, text = self._call(method, path, body)
        if status != 200:
            raise EngineBug(f"{path} answered {status}: {text[:300]!r}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise EngineBug(f"{path} did not answer JSON: {text[:300]!r}") from error

    def _call(self, method: str, path: str, body: Any = None, timeout_s: float | None = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s or self.timeout_s)
        try:
            data = None if body is None else json.dumps(body).encode()
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            response = connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unanswered(f"{path}: {error or type(error).__name__}") from error
        finally:
            connection.close()
