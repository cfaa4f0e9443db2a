"""One batched call or one connection a request: which admits a batch together, and which disturbs the server less?

Measured on the real SGLang HTTP server on the CPU with a tiny dummy model, so that front end, scheduler and
detokenizer are the real ones. Needs the environment of `requirements/install_sglang.sh`.

    python -m benchmarks.client_transport --requests 16 64 --tokens 64
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import tempfile
from pathlib import Path
from typing import Any

import psutil
from tests.engines.sglang import specs
from tests.engines.sglang.conftest import INTERPRETER
from tests.engines.sglang.test_cpu_server import cpu_settings, prompts
from tests.engines.sglang.tiny import write_checkpoint

from specjoule.engines.base import Batch
from specjoule.engines.sglang.engine import SglangEngine


def cpu_seconds(pid: int) -> dict[str, float]:
    """Return CPU seconds by role of the server's processes."""
    root = psutil.Process(pid)
    used: dict[str, float] = {}
    for process in (root, *root.children(recursive=True)):
        title = " ".join(process.cmdline())
        role = "scheduler" if "scheduler" in title else "detokenizer" if "detokenizer" in title else "front_end"
        times = process.cpu_times()
        used[role] = used.get(role, 0.0) + times.user + times.system
    return used


def measure(engine: SglangEngine, count: int, tokens: int, start: int) -> dict[str, Any]:
    """Run one wave and return how it was admitted and what it took."""
    launch = engine._launch
    assert launch is not None and launch.server.pid is not None
    batch = Batch(prompts(count, start), max_new_tokens=tokens, ignore_eos=True)
    for prompt in batch.prompts:
        engine._token_ids(launch, prompt)
    before, mark = cpu_seconds(launch.server.pid), launch.log.mark()
    wave = engine.run(batch)
    after, log = cpu_seconds(launch.server.pid), launch.log.since(mark)
    admitted = [int(m) for m in re.findall(r"Prefill batch, #new-seq: (\d+)", log)]
    firsts = [r.chunk_t_ns[0] for r in wave.requests]
    chunks = sum(len(r.chunk_tokens) for r in wave.requests)
    return {
        "first_prefill_batch": admitted[0],
        "prefill_batches": len(admitted),
        "first_token_spread_ms": round((max(firsts) - min(firsts)) / 1e6, 1),
        "ttft_mean_ms": round((statistics.mean(firsts) - wave.submit_ns) / 1e6, 1),
        "wall_s": round((wave.end_ns - wave.submit_ns) / 1e9, 3),
        "chunks_a_token": round(chunks / (count * tokens), 4),
        "client_cpu_share": round(wave.notes["client_cpu_share"], 3),
        "client_lag_ms": round(wave.client_lag_ms or 0.0, 2),
        **{f"{role}_cpu_s": round(after[role] - before[role], 2) for role in sorted(after)},
    }


def main() -> None:
    """Measure both transports in turn and print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, engine = Path(name), SglangEngine()
        spec = specs.launch(
            specs.model(write_checkpoint(folder / "tiny")),
            specs.drafter("plain"),
            folder,
            cpu_settings(INTERPRETER, max_total_tokens=40000),
            gpu=specs.CPU,
            capture=False,
            concurrencies=tuple(options.requests),
            device_uuid=None,
            weight_dtype="float32",
            kv_dtype="float32",
        )
        try:
            engine.start(spec)
            assert engine._launch is not None
            for count in options.requests:
                engine.warm_up(count, prompts(count, 5000), 4)
                for turn in range(options.repeat):
                    for transport in ("batched", "per-request"):
                        object.__setattr__(engine._launch.settings, "transport", transport)
                        found = measure(engine, count, options.tokens, start=turn * count)
                        print(json.dumps({"requests": count, "transport": transport, **found}), flush=True)
        finally:
            engine.stop()


if __name__ == "__main__":
    main()
