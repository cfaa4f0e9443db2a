"""Records the answers of the real CPU server whose shape the protocol double copies: `answers.json` beside this file.

.venv/bin/python -m tests.engines.sglang.record_answers
"""

from __future__ import annotations

import json
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from specjoule.engines.sglang.engine import SglangEngine
from tests.engines.sglang import specs
from tests.engines.sglang.conftest import INTERPRETER
from tests.engines.sglang.test_cpu_server import cpu_settings
from tests.engines.sglang.tiny import write_checkpoint

ANSWERS = Path(__file__).with_name("answers.json")


def call(url: str, body: Any = None) -> str:
    """Return the text of an answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return str(answer.read().decode())


def record(base: str) -> dict[str, Any]:
    """Return one answer of every endpoint that the engine reads."""
    sampling = {"temperature": 0, "max_new_tokens": 4, "ignore_eos": True}
    body = {"input_ids": [[1, 2, 3], [4, 5, 6, 7]], "stream": True, "sampling_params": sampling}
    stream = call(f"{base}/generate", body)
    chunks = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith("data: {")]
    return {
        "server_info": json.loads(call(f"{base}/server_info")),
        "loads": json.loads(call(f"{base}/v1/loads?include=core,memory,spec")),
        "tokenize": json.loads(call(f"{base}/tokenize", {"messages": [{"role": "user", "content": "hi"}]})),
        "chunk": next(c for c in chunks if c["meta_info"]["finish_reason"] is None),
        "last_chunk": next(c for c in chunks if c["meta_info"]["finish_reason"] is not None),
        "flush": call(f"{base}/flush_cache", {}),
    }


def main() -> None:
    """Start the real server, record, end it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        spec = specs.launch(
            specs.model(write_checkpoint(folder / "tiny")),
            specs.drafter("plain"),
            folder,
            cpu_settings(INTERPRETER),
            gpu=specs.CPU,
            capture=False,
            device_uuid=None,
            weight_dtype="float32",
            kv_dtype="float32",
        )
        engine = SglangEngine()
        try:
            engine.start(spec)
            assert engine._launch is not None
            answers = record(engine._launch.api.generate_url.removesuffix("/generate"))
        finally:
            engine.stop()
        text = json.dumps(answers, indent=1, sort_keys=True).replace(str(folder / "tiny"), "/checkpoint")
        ANSWERS.write_text(text + "\n")


if __name__ == "__main__":
    main()
