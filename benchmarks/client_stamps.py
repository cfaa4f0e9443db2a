"""How accurate are the client's stamps, and how much of a core do they take?

A server process emits server-sent events of the real size at a fixed pace, each with the time it was written; the
client stamps them on its arrival. Both clocks are CLOCK_MONOTONIC, so the difference is the stamp's error. A sampler
process polls beside them as the meter's does.

    python benchmarks/client_stamps.py --streams 64 --rate 200 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import time
from pathlib import Path
from typing import Any

import psutil
from aiohttp import web

from specjoule.client import Limits, run_wave

META = {
    "finish_reason": None, "prompt_tokens": 300, "weight_version": "default", "num_retractions": 0,
    "storage_prefetch_wait": 0.0, "storage_staging_wait": 0.0, "forward_entry_time": 1795968223.2978456,
    "prefill_finished_time": 1795968223.304838, "queue_time": 0.0005544260000078793, "reasoning_tokens": 0,
    "completion_tokens": 2, "cached_tokens": 0, "cached_tokens_details": None, "dp_rank": None,
}  # fmt: skip
"""A chunk's content as the real server sends it, so that the bytes a second are right."""


def event(index: int, burst_ns: int) -> bytes:
    """Return one event; `t` is the time just before it is written."""
    meta = {"id": "ef18a2c852804c748c6d543efbb95d89", **META}
    body = {
        "text": " the",
        "output_ids": [262],
        "meta_info": meta,
        "index": index,
        "t": time.monotonic_ns(),
        "due": burst_ns,
    }
    return b"data: " + json.dumps(body).encode() + b"\n\n"


async def emit(request: web.Request) -> web.StreamResponse:
    """Stream `tokens` events for each prompt of the body, all prompts of a step in one burst, as a server does."""
    body = await request.json()
    first, count = body["first"], body["count"]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    start = (time.monotonic_ns() // 100_000_000 + 3) * 100_000_000
    for step in range(body["tokens"]):
        due = start + round(step * 1e9 / body["rate"])
        await asyncio.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
        for index in range(first, first + count):
            await response.write(event(index, due))
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response


def serve(port: Any) -> None:
    """Run the emitting server; its port goes back through the queue."""

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/generate", emit)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port.put(site._server.sockets[0].getsockname()[1])  # type: ignore[union-attr]
        await asyncio.Event().wait()

    asyncio.run(run())


def poll() -> None:
    """Poll a small file every 5 ms, as a meter's sampler does."""
    file = Path("/proc/stat")
    while True:
        file.read_bytes()
        time.sleep(0.005)


def measure(url: str, streams: int, rate: float, seconds: float, batched: bool) -> dict[str, Any]:
    """Run one wave and return the stamp errors and what the client took."""
    tokens = round(rate * seconds)
    common = {"tokens": tokens, "rate": rate}
    if batched:
        bodies = [{**common, "first": 0, "count": streams}]
    else:
        bodies = [{**common, "first": i, "count": 1} for i in range(streams)]
    psutil.cpu_times_percent(interval=None)
    wave = run_wave(url, bodies, Limits(wave_s=seconds + 60, stall_s=20))
    machine = psutil.cpu_times_percent(interval=None)
    events = wave.parsed().events
    errors = sorted((e.t_ns - e.content["t"]) / 1e6 for e in events)
    return {
        "events": len(events),
        "p50_ms": round(statistics.median(errors), 3),
        "p99_ms": round(errors[int(0.99 * len(errors))], 3),
        "max_ms": round(errors[-1], 3),
        "share_within_1_ms": round(sum(e <= 1.0 for e in errors) / len(errors), 5),
        "lag_ms": round(wave.lag_ms, 3),
        "client_cores": round(wave.cpu_share, 3),
        "machine_idle_cores": round(machine.idle / 100 * (psutil.cpu_count() or 1), 2),
    }


def main() -> None:
    """Measure both transports and print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeat", type=int, default=2)
    options = parser.parse_args()
    port: Any = multiprocessing.get_context("spawn").Queue()
    processes = [
        multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True),
        multiprocessing.get_context("spawn").Process(target=poll, daemon=True),
    ]
    for process in processes:
        process.start()
    try:
        url = f"http://127.0.0.1:{port.get(timeout=30)}/generate"
        for _ in range(options.repeat):
            for batched in (True, False):
                found = measure(url, options.streams, options.rate, options.seconds, batched)
                print(json.dumps({"transport": "batched" if batched else "per-request", **found}), flush=True)
    finally:
        for process in processes:
            process.terminate()
            process.join()


if __name__ == "__main__":
    main()
