"""Submits one wave and stamps everything that comes back; nothing is parsed while it runs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from specjoule.client.lag import Heartbeat, lag_ms
from specjoule.client.stamps import Parsed, Piece, parse

READ_BYTES = 1 << 18


class StreamEnded(Exception):
    """A connection broke, was refused, or went silent for too long; `kind` says which."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class Limits:
    """How long a wave may take, and how long it may be silent."""

    wave_s: float
    stall_s: float


@dataclass(frozen=True)
class Wave:
    """A wave as the client saw it, still raw."""

    submit_ns: int
    end_ns: int
    pieces: tuple[Piece, ...]
    connections: int
    lag_ms: float
    cpu_share: float
    """CPU time of the client's thread over the wave's duration."""

    def parsed(self) -> Parsed:
        """Cut the wave into events."""
        return parse(self.pieces)


def run_wave(url: str, bodies: Sequence[dict[str, Any]], limits: Limits) -> Wave:
    """Post every body at once, each on its own connection, and read all streams to their ends.

    One body with many prompts is the batched call; one body a prompt is one connection per request. Raises StreamEnded
    (`refused`, `broken`, `stalled`, `deadline`). Stamps are CLOCK_MONOTONIC, taken before anything is decoded; the
    garbage collector rests meanwhile, because a full collection would delay stamps by tens of milliseconds.
    """
    with _no_collection():
        return asyncio.run(_run(url, bodies, limits))


async def _run(url: str, bodies: Sequence[dict[str, Any]], limits: Limits) -> Wave:
    descriptors: dict[int, int] = {}
    pieces: list[Piece] = []
    heartbeat = Heartbeat(lambda: tuple(descriptors.values()))
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=limits.stall_s)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, read_bufsize=READ_BYTES) as session:
        heartbeat.start()
        cpu_start = time.thread_time_ns()
        submit_ns = time.monotonic_ns()
        streams = [
            asyncio.ensure_future(_stream(session, url, body, i, pieces, descriptors)) for i, body in enumerate(bodies)
        ]
        try:
            await asyncio.wait_for(asyncio.gather(*streams), limits.wave_s)
        except TimeoutError as error:
            if isinstance(error, aiohttp.ServerTimeoutError):
                raise StreamEnded("stalled", f"no byte for {limits.stall_s:g} s") from error
            raise StreamEnded("deadline", f"the wave took longer than {limits.wave_s:g} s") from error
        except aiohttp.ClientConnectorError as error:
            raise StreamEnded("refused", f"the server does not answer ({error})") from error
        except (aiohttp.ClientError, ConnectionError) as error:
            raise StreamEnded("broken", f"the stream broke: {error or type(error).__name__}") from error
        finally:
            for stream in streams:
                stream.cancel()
            await asyncio.gather(*streams, return_exceptions=True)
            await heartbeat.stop()
        cpu_ns = time.thread_time_ns() - cpu_start
    end_ns = pieces[-1].t_ns if pieces else submit_ns
    seconds = max((end_ns - submit_ns) / 1e9, 1e-9)
    rate = sum(len(p.data) for p in pieces) / seconds
    return Wave(
        submit_ns=submit_ns,
        end_ns=end_ns,
        pieces=tuple(pieces),
        connections=len(bodies),
        lag_ms=lag_ms(heartbeat.beats, rate, submit_ns, end_ns),
        cpu_share=cpu_ns / 1e9 / seconds,
    )


async def _stream(
    session: aiohttp.ClientSession,
    url: str,
    body: dict[str, Any],
    connection: int,
    pieces: list[Piece],
    descriptors: dict[int, int],
) -> None:
    async with session.post(url, json=body) as response:
        if response.status != 200:
            text = (await response.text())[:500]
            raise StreamEnded("rejected", f"the server answered {response.status}: {text}")
        descriptors[connection] = _descriptor(response)
        try:
            while data := await response.content.readany():
                pieces.append(Piece(time.monotonic_ns(), data, connection))
        finally:
            descriptors.pop(connection, None)


def _descriptor(response: aiohttp.ClientResponse) -> int:
    transport = response.connection.transport if response.connection is not None else None
    sock = transport.get_extra_info("socket") if transport is not None else None
    return -1 if sock is None else int(sock.fileno())


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
