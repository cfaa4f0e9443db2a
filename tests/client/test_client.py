"""The client against small servers of our own: stamps, both transports, its own lag, and streams that end badly."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiohttp import web

from specjoule.client import Limits, Piece, StreamEnded, parse, run_wave
from specjoule.client.lag import Beat, lag_ms, waiting_bytes

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
LIMITS = Limits(wave_s=20, stall_s=5)
PLAIN = 'data: {{"i": {0}, "t": {1}}}\n\n'


@contextmanager
def serving(handler: Handler) -> Iterator[str]:
    """Serve /generate with `handler` in a thread of its own; yield its address."""
    ready: threading.Event = threading.Event()
    state: dict[str, Any] = {}

    async def run() -> None:
        app = web.Application()
        app.router.add_post("/generate", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        state["port"] = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        state["loop"], state["stop"] = asyncio.get_running_loop(), asyncio.Event()
        ready.set()
        await state["stop"].wait()
        await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(10)
    try:
        yield f"http://127.0.0.1:{state['port']}/generate"
    finally:
        state["loop"].call_soon_threadsafe(state["stop"].set)
        thread.join(10)


async def opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    return response


async def steady(request: web.Request) -> web.StreamResponse:
    """Send `count` events, one every 5 ms, each with the time it was written."""
    body = await request.json()
    response = await opened(request)
    for _ in range(body["count"]):
        await asyncio.sleep(0.005)
        await response.write(PLAIN.format(body["i"], time.monotonic_ns()).encode())
    await response.write(b"data: [DONE]\n\n")
    return response


def test_one_connection_a_body_and_stamps_close_to_the_writing() -> None:
    with serving(steady) as url:
        wave = run_wave(url, [{"i": i, "count": 30} for i in range(8)], LIMITS)
    parsed = wave.parsed()
    assert parsed.finished == set(range(8))
    assert sorted(e.content["i"] for e in parsed.events) == sorted(list(range(8)) * 30)
    assert all(e.connection == e.content["i"] for e in parsed.events)
    delays = sorted((e.t_ns - e.content["t"]) / 1e6 for e in parsed.events)
    assert delays[0] > 0
    assert delays[len(delays) // 2] < 20
    assert wave.submit_ns < parsed.events[0].t_ns <= wave.end_ns
    assert 0 <= wave.cpu_share < 1


def test_a_client_that_falls_behind_knows_it() -> None:
    """Something that holds the client's loop for 60 ms shows as at least that much lag."""

    async def busy() -> None:
        await asyncio.sleep(0.05)
        time.sleep(0.06)

    from specjoule.client import stream

    with serving(steady) as url, pytest.MonkeyPatch.context() as patch:
        original = stream._stream

        async def disturbed(*arguments: Any) -> None:
            await asyncio.gather(original(*arguments), busy())

        patch.setattr(stream, "_stream", disturbed)
        wave = run_wave(url, [{"i": 0, "count": 40}], LIMITS)
    assert wave.lag_ms > 40


def test_a_queue_in_the_socket_counts_as_lag() -> None:
    beats = [Beat(10, 0, 0), Beat(20, 1_000_000, 5000), Beat(99, 9, 0)]
    assert lag_ms(beats, bytes_per_s=1e6, start_ns=5, end_ns=30) == pytest.approx(1.0 + 5.0)
    assert lag_ms([], 1e6, 0, 1) == 0.0


def test_waiting_bytes_of_a_socket() -> None:
    one, other = socket.socketpair()
    with one, other:
        one.sendall(b"12345")
        time.sleep(0.05)
        assert waiting_bytes(other.fileno()) == 5
    assert waiting_bytes(-1) == 0


def test_silence_is_a_stall_and_length_a_deadline() -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        await response.write(b'data: {"i": 0}\n\n')
        await asyncio.sleep(30)
        return response

    with serving(silent) as url:
        with pytest.raises(StreamEnded) as stalled:
            run_wave(url, [{}], Limits(wave_s=10, stall_s=0.5))
        with pytest.raises(StreamEnded) as late:
            run_wave(url, [{}], Limits(wave_s=0.5, stall_s=10))
    assert (stalled.value.kind, late.value.kind) == ("stalled", "deadline")


def test_broken_refused_and_rejected() -> None:
    async def broken(request: web.Request) -> web.StreamResponse:
        response = await opened(request)
        await response.write(b'data: {"i": 0}\n\n')
        assert request.transport is not None
        request.transport.abort()
        return response

    async def rejects(_: web.Request) -> web.StreamResponse:
        return web.Response(status=400, text="input too long")

    with serving(broken) as url, pytest.raises(StreamEnded) as caught:
        run_wave(url, [{}], LIMITS)
    assert caught.value.kind == "broken"
    with pytest.raises(StreamEnded) as caught:
        run_wave(url, [{}], LIMITS)
    assert caught.value.kind == "refused"
    with serving(rejects) as url, pytest.raises(StreamEnded, match="input too long") as caught:
        run_wave(url, [{}], LIMITS)
    assert caught.value.kind == "rejected"


def test_the_collector_rests_only_while_a_wave_runs() -> None:
    import gc

    with serving(steady) as url:
        run_wave(url, [{"i": 0, "count": 2}], LIMITS)
    assert gc.isenabled()


def test_events_cut_anywhere_count_from_the_piece_that_completes_them() -> None:
    whole = b'data: {"a": 1}\n\ndata: {"a": 2}\n\ndata: [DONE]\n\n'
    for cut in range(1, len(whole)):
        parsed = parse([Piece(1, whole[:cut]), Piece(2, whole[cut:])])
        assert [e.content["a"] for e in parsed.events] == [1, 2]
        assert parsed.finished == {0}
        expected = [1 if cut >= 16 else 2, 1 if cut >= 32 else 2]
        assert [e.t_ns for e in parsed.events] == expected


def test_connections_do_not_mix_and_open_ends_show() -> None:
    parsed = parse(
        [Piece(1, b'data: {"a"', 0), Piece(2, b'data: {"a": 5}\n\ndata: [DONE]\n\n', 1), Piece(3, b": 4}\n\n", 0)]
    )
    assert [(e.connection, e.content["a"]) for e in parsed.events] == [(1, 5), (0, 4)]
    assert parsed.finished == {1}


@pytest.mark.parametrize("text", [b"event: x\n\n", b"data: 5\n\n", b"data: {\n\n"])
def test_what_is_no_event_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError):
        parse([Piece(1, text)])


def test_parsing_a_large_wave_takes_seconds_at_most() -> None:
    event = b"data: " + json.dumps({"meta_info": {"x": "y" * 500}}).encode() + b"\n\n"
    begun = time.perf_counter()
    assert len(parse([Piece(i, event) for i in range(20000)]).events) == 20000
    assert time.perf_counter() - begun < 10
