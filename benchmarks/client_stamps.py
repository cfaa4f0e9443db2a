"""How accurate are the client's stamps, and how much of a core do they take?

A server process emits server-sent events of the real size at a fixed pace, each with the time it was written; the
client stamps them on its arrival. Both clocks are CLOCK_MONOTONIC, so the difference is the stamp's error. The meter's
own sampler reads a board beside them at the study's rate: that of the tests' stand-in driver, or with `--board` a real
one. Both transports are measured in turn, so that a busy machine is busy for both.

    python benchmarks/client_stamps.py --streams 64 --rate 200 --seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from aiohttp import web

from specjoule.client import Limits, run_wave
from specjoule.meters.base import BOARD
from specjoule.meters.factory import MeterSettings, open_meter
from specjoule.meters.sampled import SampledMeter

METERS = Path(__file__).resolve().parents[1] / "tests" / "meters"

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


@contextlib.contextmanager
def sampled(board: str | None) -> Iterator[SampledMeter]:
    """Run the meter's own sampler on a real board, or on that of the tests' stand-in driver."""
    with contextlib.ExitStack() as stack:
        if board is None:
            sys.path.insert(0, str(METERS))
            import fake_nvml

            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            driver = fake_nvml.FakeDriver(folder, fake_nvml.build(folder))
            stack.callback(driver.close)
            driver.load_on()
            os.environ.update(driver.environment)  # found by the sampler's process, which starts after this
            board = driver.uuid()
        meter = open_meter(MeterSettings(name="nvml", poll_ms=5, board=board))
        stack.callback(meter.stop)
        meter.start()
        yield meter


def refresh_dating(meter: SampledMeter, since_ns: int) -> dict[str, Any]:
    """Return how exactly the sampler dated the board's refreshes meanwhile: what a crowded machine costs it."""
    refreshes = meter.everything().refreshes[BOARD]
    late = refreshes.read_start_ns >= since_ns
    widths = (refreshes.read_end_ns[late] - refreshes.read_start_ns[late]) / 1e6
    if not widths.size:
        return {"refreshes": 0}
    return {
        "refreshes": int(widths.size),
        "dated_within_p50_ms": round(float(np.median(widths)), 3),
        "dated_within_max_ms": round(float(widths.max()), 3),
    }


def measure(url: str, meter: SampledMeter, streams: int, rate: float, seconds: float, batched: bool) -> dict[str, Any]:
    """Run one wave and return the stamp errors and what the client took."""
    tokens = round(rate * seconds)
    common = {"tokens": tokens, "rate": rate}
    if batched:
        bodies = [{**common, "first": 0, "count": streams}]
    else:
        bodies = [{**common, "first": i, "count": 1} for i in range(streams)]
    sampler = psutil.Process(meter.sampler_pid)
    used, begun = sum(sampler.cpu_times()[:2]), time.monotonic_ns()
    psutil.cpu_times_percent(interval=None)
    wave = run_wave(url, bodies, Limits(wave_s=seconds + 60, stall_s=20))
    machine = psutil.cpu_times_percent(interval=None)
    events = wave.parsed().events
    errors = sorted((e.t_ns - e.content["t"]) / 1e6 for e in events)
    elapsed_s = (time.monotonic_ns() - begun) / 1e9
    return {
        "events": len(events),
        "p50_ms": round(statistics.median(errors), 3),
        **{f"p{q}_ms": round(errors[int(q / 100 * (len(errors) - 1))], 3) for q in (95, 99, 99.9)},
        "max_ms": round(errors[-1], 3),
        "share_within_1_ms": round(sum(e <= 1.0 for e in errors) / len(errors), 5),
        "lag_ms": round(wave.lag_ms, 3),
        "client_cores": round(wave.cpu_share, 3),
        "sampler_cores": round((sum(sampler.cpu_times()[:2]) - used) / elapsed_s, 3),
        "machine_idle_cores": round(machine.idle / 100 * (psutil.cpu_count() or 1), 2),
        "load_average": round(psutil.getloadavg()[0], 1),
        **refresh_dating(meter, begun),
    }


def main() -> None:
    """Measure both transports and print one JSON object a line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--board", help="UUID of a real board for the sampler; default: the tests' stand-in driver")
    options = parser.parse_args()
    port: Any = multiprocessing.get_context("spawn").Queue()
    server = multiprocessing.get_context("spawn").Process(target=serve, args=(port,), daemon=True)
    server.start()
    try:
        url = f"http://127.0.0.1:{port.get(timeout=30)}/generate"
        with sampled(options.board) as meter:
            for _ in range(options.repeat):
                for batched in (True, False):
                    found = measure(url, meter, options.streams, options.rate, options.seconds, batched)
                    print(json.dumps({"transport": "batched" if batched else "per-request", **found}), flush=True)
    finally:
        server.terminate()
        server.join()


if __name__ == "__main__":
    main()
