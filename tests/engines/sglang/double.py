"""A protocol double of the SGLang server: the same endpoints, answers and log lines, with faults put in from outside.

    python double.py FLAGS...        (the flags of `sglang serve`)

Answers have the shape of `answers.json`, which the real CPU server gave; speculation adds the fields that the pinned
source adds. `SPECJOULE_DOUBLE` holds a JSON object: `mode` (scripted or reference), `step_ms`, `kv_tokens`,
`running_limit`, `rate`, and `faults`, by name. `width_ms` is added to `step_ms` for each verified position beyond the
first. `faults_on` names the speculative algorithm (`plain` for none) whose servers alone have the faults, and
`faults_once` a file: the faults are those of the one server that creates it; `faults_while` a file without which there
are none. Where a stand-in driver is named (`FAKE_NVML_STATE`), its board draws its busy power while a batch runs and
lists the server's process.

    slow_start_s N          takes N seconds before it answers
    never_ready             answers 503 on /ready for ever
    die {phase, message, code}   at load, capture or ready: writes the message and exits
    hang_after N            stops answering after N chunks of a wave
    drop_after N            closes the stream after N chunks
    kill_after N            is killed (SIGKILL) after N chunks
    die_after [N, message]  writes the message and exits after N chunks
    omit NAME               leaves a field out of every answer that holds it
    short N                 delivers and reports N tokens fewer than asked
    lose N                  delivers N tokens fewer than it reports
    cached N                says that N prompt tokens came from a cache
    eager                   runs its steps without graphs
    no_draft_graph          captures no graph for the draft
    orphan                  starts a child in a session of its own
    ignore_term             ignores SIGTERM
    running_limit N         runs N requests at once at most
"""

from __future__ import annotations

import asyncio
import copy
import gzip
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from aiohttp import web

from tests.engines.sglang.double_board import DoubleBoard
from tests.engines.sglang.plans import Backend, Plan, Reference, Scripted

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("answers.json").read_text())
ALGORITHMS = {"NEXTN": "EAGLE"}


def say(text: str) -> None:
    """Write a line of the server's log."""
    print(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] {text}", flush=True)


@dataclass
class Arguments:
    """The flags, as far as the double acts on them."""

    values: dict[str, list[str]]

    @classmethod
    def of(cls, words: list[str]) -> Arguments:
        """Split words into flags and their values."""
        values: dict[str, list[str]] = {}
        name = ""
        for word in words:
            if word.startswith("--"):
                name = word[2:].replace("-", "_")
                values[name] = []
            elif name:
                values[name].append(word)
        return cls(values)

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a flag's value."""
        return self.values[name][0] if self.values.get(name) else default

    def number(self, name: str, default: int) -> int:
        """Return a flag's value as a whole number."""
        return int(self.text(name, str(default)) or default)

    @property
    def algorithm(self) -> str | None:
        """The resolved speculative algorithm."""
        name = self.text("speculative_algorithm")
        return None if name is None else ALGORITHMS.get(name, name)

    @property
    def width(self) -> int:
        """Verified positions."""
        if self.algorithm is None:
            return 1
        if "speculative_dspark_block_size" in self.values:
            return self.number("speculative_dspark_block_size", 6) + 1
        block = self.number("speculative_dflash_block_size", 0)
        return block or self.number("speculative_num_draft_tokens", 4)

    @property
    def captured(self) -> list[int]:
        """Captured batches."""
        return [int(b) for b in self.values.get("cuda_graph_bs_decode", [])]

    def resolved(self) -> dict[str, Any]:
        """Return the real server's answer with what these flags change."""
        found: dict[str, Any] = copy.deepcopy(ANSWERS["server_info"])
        for name, words in self.values.items():
            if name in found and len(words) <= 1:
                found[name] = _typed(found[name], words[0]) if words else True
        found["speculative_algorithm"] = self.algorithm
        if self.algorithm is not None:
            block = self.algorithm in ("DFLASH", "DSPARK")
            found["speculative_num_draft_tokens"] = self.width
            found["speculative_num_steps"] = 1 if block else self.number("speculative_num_steps", self.width)
            found["speculative_eagle_topk"] = 1
        found["cuda_graph_bs_decode"] = self.captured or None
        return found


def _typed(old: Any, word: str) -> Any:
    if isinstance(old, bool):
        return word.lower() == "true"
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


@dataclass
class Running:
    """One request that is being answered."""

    index: int
    plan: Plan
    prompt_tokens: int
    out: asyncio.Queue[dict[str, Any] | None]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    sent: int = 0


class Double:
    """The server's state and endpoints."""

    def __init__(self, arguments: Arguments, config: dict[str, Any]) -> None:
        self.arguments = arguments
        self.config = config
        self.faults: dict[str, Any] = config.get("faults", {})
        self.step_s = (config.get("step_ms", 4) + config.get("width_ms", 0) * (arguments.width - 1)) / 1e3
        self.board = DoubleBoard()
        self.limit = int(
            self.faults.get("running_limit")
            or config.get("running_limit", arguments.number("max_running_requests", 64))
        )
        self.moments = [0.0] * 6
        self.prefilled = [0, 0]
        self.profile, self.profiled_from = Path(), 0.0
        self.chunks = 0
        self.running: list[Running] = []
        self.waiting: list[Running] = []
        self.turn: asyncio.Task[None] | None = None
        self.ready_at = time.monotonic()
        self.backend: Backend = self._backend()

    def _backend(self) -> Backend:
        if self.config.get("mode") == "reference":
            path = Path(self.arguments.text("model_path") or ".")
            return Reference(path, self.arguments.algorithm, self.arguments.width)
        return Scripted(self.arguments.width, self.config.get("rate", 0.6))

    # -- endpoints

    async def ready(self, _: web.Request) -> web.Response:
        """Answer /ready."""
        up = not self.faults.get("never_ready")
        return web.Response(status=200 if up else 503)

    async def server_info(self, _: web.Request) -> web.Response:
        """Answer /server_info."""
        info = self.arguments.resolved()
        info["max_total_num_tokens"] = self.config.get("kv_tokens", 20000)
        state = info["internal_states"][0]
        state["effective_max_running_requests_per_dp"] = self.limit
        state["decode_cuda_graph_bs"] = self.arguments.captured
        return self._json(info)

    async def loads(self, _: web.Request) -> web.Response:
        """Answer /v1/loads."""
        answer = copy.deepcopy(ANSWERS["loads"])
        load = answer["loads"][0]
        load["num_running_reqs"], load["num_waiting_reqs"] = len(self.running), len(self.waiting)
        load["max_running_requests"] = self.limit
        load["max_total_num_tokens"] = self.config.get("kv_tokens", 20000)
        load["decode_moments"] = list(self.moments) if self.moments[0] else None
        load["total_prefill_uncached_tokens"], load["total_prefill_busy_us"] = self.prefilled
        return self._json(answer)

    async def flush(self, _: web.Request) -> web.Response:
        """Answer /flush_cache."""
        if self.running or self.waiting:
            return web.Response(status=400, text="Flush cache failed.\n")
        self.backend.flush()
        return web.Response(text=ANSWERS["flush"])

    async def tokenize(self, request: web.Request) -> web.Response:
        """Answer /tokenize."""
        ids = self.backend.tokenize((await request.json())["messages"])
        return self._json({**ANSWERS["tokenize"], "tokens": ids, "count": len(ids)})

    async def generate(self, request: web.Request) -> web.StreamResponse:
        """Answer /generate with a stream of server-sent events."""
        body = await request.json()
        prompts = body["input_ids"]
        batched = isinstance(prompts[0], list)
        sampling = body["sampling_params"]
        limit = sampling["max_new_tokens"] - int(self.faults.get("short", 0))
        todo = prompts if batched else [prompts]
        plans = await asyncio.to_thread(self.backend.plan, todo, limit, sampling["ignore_eos"])
        out: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        mine = [Running(i, plan, len(ids), out) for i, (ids, plan) in enumerate(zip(todo, plans, strict=True))]
        self.waiting += mine
        if self.turn is None or self.turn.done():
            self.turn = asyncio.get_running_loop().create_task(self._schedule())
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        left = len(mine)
        while left:
            content = await out.get()
            assert content is not None
            await self._maybe_fail(request)
            left -= content["meta_info"]["finish_reason"] is not None
            if not batched:
                del content["index"]
            await response.write(b"data: " + json.dumps(self._without(content)).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def start_profile(self, request: web.Request) -> web.Response:
        """Answer /start_profile."""
        self.profile = Path((await request.json())["output_dir"])
        self.profiled_from = self.moments[0]
        return web.Response(text="Start profiling.\n")

    async def stop_profile(self, _: web.Request) -> web.Response:
        """Answer /stop_profile with a trace as the real server's profiler writes it, one pass of each role a round."""
        events: list[dict[str, Any]] = []
        algorithm, graph = self.arguments.algorithm, bool(self.arguments.captured) and not self.faults.get("eager")
        stages = ["step[VERIFY bs=4]"] if algorithm else ["step[DECODE bs=4]"]
        if algorithm not in (None, "NGRAM", "DFLASH", "DSPARK"):
            stages += ["draft_extend", "draft"]
        for i in range(int(self.moments[0] - self.profiled_from)):
            for j, name in enumerate(stages):
                at = 1000.0 * i + 100 * j
                events.append({"ph": "X", "cat": "user_annotation", "name": name, "ts": at, "dur": 50, "tid": 7})
                if graph and not (j and self.faults.get("no_draft_graph")):
                    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": at + 9, "dur": 1}
                    events.append(launch | {"tid": 7})
        with gzip.open(self.profile / "1-TP-0.trace.json.gz", "wt") as trace:
            json.dump({"traceEvents": events}, trace)
        return web.Response(text="Stop profiling. This will take some time.\n")

    async def set_faults(self, request: web.Request) -> web.Response:
        """Change the faults of a running double; the real server has no such endpoint."""
        self.faults = await request.json()
        self.chunks = 0
        return web.Response()

    # -- scheduling

    async def _schedule(self) -> None:
        self.board.busy()
        try:
            await self._steps()
        finally:
            self.board.idle()

    async def _steps(self) -> None:
        previous_was_decode = False
        while self.running or self.waiting:
            joined = self.waiting[: max(0, self.limit - len(self.running))]
            self.waiting = self.waiting[len(joined) :]
            if joined:
                say(f"Prefill batch, #new-seq: {len(joined)}, #running-req: {len(self.running)}, #queue-req: 0")
                await asyncio.sleep(self.step_s)
                self.prefilled[0] += sum(r.prompt_tokens for r in joined)
                self.prefilled[1] += int(self.step_s * 1e6)
                self.running += joined
                for request in joined:
                    self._emit(request)
                previous_was_decode = False
            elif self.running:
                begun = time.monotonic()
                await asyncio.sleep(self.step_s)
                batch = list(self.running)
                tokens = sum(self._emit(request) for request in batch)
                self._count(len(batch), (time.monotonic() - begun) * 1e6, tokens, previous_was_decode)
                previous_was_decode = True
            self.running = [r for r in self.running if r.sent < len(r.plan.chunks)]

    def _count(self, batch: int, step_us: float, tokens: int, contiguous: bool) -> None:
        graph = bool(self.arguments.captured) and not self.faults.get("eager")
        speculative = "accept len: 2.00, accept rate: 0.50, " if self.arguments.algorithm else ""
        say(
            f"Decode batch, #running-req: {batch}, #token: {tokens}, token usage: 0.01, {speculative}"
            f"cuda graph: {graph}, gen throughput (token/s): {tokens / step_us * 1e6:.2f}, #queue-req: 0"
        )
        if contiguous:
            for i, value in enumerate((1.0, batch, step_us, batch * batch, batch * step_us, tokens)):
                self.moments[i] += value

    def _emit(self, request: Running) -> int:
        plan, number = request.plan, request.sent
        ids = list(plan.chunks[number])
        last = number == len(plan.chunks) - 1
        content = copy.deepcopy(ANSWERS["last_chunk" if last else "chunk"])
        meta = content["meta_info"]
        completed = sum(len(c) for c in plan.chunks[: number + 1])
        meta.update(id=request.id, prompt_tokens=request.prompt_tokens, completion_tokens=completed)
        meta["cached_tokens"] = int(self.faults.get("cached", 0))
        if last:
            meta["finish_reason"] = {"type": "stop", "matched": ids[-1]} if plan.ended_by_eos else {
                "type": "length", "length": completed
            }  # fmt: skip
            if self.arguments.algorithm is not None and plan.rounds:
                meta.update(self._speculation(plan))
            lost = int(self.faults.get("lose", 0))
            ids = ids[: max(0, len(ids) - lost)]
        content.update(text=plan.texts[number], output_ids=ids, index=request.index)
        request.sent += 1
        request.out.put_nowait(content)
        return len(ids)

    def _speculation(self, plan: Plan) -> dict[str, Any]:
        proposed = plan.rounds * (self.arguments.width - 1)
        histogram = list(plan.histogram)
        while histogram and histogram[-1] == 0:
            histogram.pop()
        return {
            "spec_accept_rate": plan.accepted / max(1, proposed),
            "spec_accept_length": plan.tokens / plan.rounds,
            "spec_num_correct_drafts": plan.accepted,
            "spec_num_proposed_drafts": proposed,
            "spec_verify_ct": plan.rounds,
            "spec_correct_drafts_histogram": histogram,
        }

    # -- faults

    async def _maybe_fail(self, request: web.Request) -> None:
        self.chunks += 1
        if self.chunks == self.faults.get("hang_after"):
            await asyncio.Event().wait()
        if self.chunks == self.faults.get("drop_after"):
            assert request.transport is not None
            request.transport.abort()
        if self.chunks == self.faults.get("kill_after"):
            os.kill(os.getpid(), signal.SIGKILL)
        after, message = self.faults.get("die_after", (None, ""))
        if self.chunks == after:
            print(message, flush=True)
            os._exit(1)

    def _without(self, content: Any) -> Any:
        name = self.faults.get("omit")
        if name is None:
            return content
        if isinstance(content, dict):
            return {k: self._without(v) for k, v in content.items() if k != name}
        return [self._without(v) for v in content] if isinstance(content, list) else content

    def _json(self, content: Any) -> web.Response:
        return web.json_response(self._without(content))


def chosen_faults(arguments: Arguments, config: dict[str, Any]) -> dict[str, Any]:
    """Return the faults that this very server has."""
    if config.get("faults_on") not in (None, arguments.algorithm or "plain"):
        return {}
    if "faults_while" in config and not Path(config["faults_while"]).exists():
        return {}
    once = config.get("faults_once")
    if once is None:
        return config.get("faults", {})
    try:
        Path(once).open("x").close()
    except FileExistsError:
        return {}
    return config.get("faults", {})


def die(faults: dict[str, Any], phase: str) -> None:
    """Exit here if the faults say so."""
    wanted = faults.get("die")
    if wanted and wanted["phase"] == phase:
        print(wanted["message"], flush=True)
        sys.stdout.flush()
        os._exit(wanted.get("code", 1))


def capture_lines(arguments: Arguments, faults: dict[str, Any]) -> None:
    """Write what the real server writes while it captures, for these flags."""
    if not arguments.captured:
        return
    bs, algorithm = arguments.captured, arguments.algorithm
    target = "target verify" if algorithm else "target decode"
    say(f"Capture {target} CUDA graph begin. backend=full, num_tokens_per_req={arguments.width}, avail mem=30.00 GB")
    die(faults, "capture")
    say(f"Capture {target} CUDA graph end. bs={bs}, elapsed=1.00 s, mem usage=0.50 GB, avail mem=29.50 GB.")
    if algorithm in (None, "NGRAM") or faults.get("no_draft_graph"):
        return
    if algorithm in ("DFLASH", "DSPARK"):
        say("Capture draft verify CUDA graph begin. backend=full, num_tokens_per_req=1, avail mem=29.00 GB")
        say(f"Capture draft verify CUDA graph end. bs={bs}, elapsed=1.00 s, mem usage=0.10 GB, avail mem=28.90 GB.")
        return
    if algorithm == "FROZEN_KV_MTP":
        say("Capture Frozen-KV MTP draft cuda graph begin.")
        say("Capture Frozen-KV MTP draft cuda graph end.")
        return
    if arguments.number("speculative_num_steps", 1) > 1:
        say(f"Capture draft decode CUDA graph begin. backend=full, num_tokens_per_req=1, bs={bs}, avail mem=29.00 GB")
        say("Capture draft decode CUDA graph end. elapsed=1.00 s, mem usage=0.10 GB, avail mem=28.90 GB.")
    say(f"Capture draft extend CUDA graph begin. backend=full, num_tokens_per_req=4, bs={bs}, avail mem=28.00 GB")
    say("Capture draft extend CUDA graph end. elapsed=1.00 s, mem usage=0.10 GB, avail mem=27.90 GB.")


async def serve(arguments: Arguments, config: dict[str, Any]) -> None:
    """Start as the real server does, then answer until the end."""
    faults = config["faults"] = chosen_faults(arguments, config)
    if faults.get("ignore_term"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if faults.get("orphan"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        say(f"orphan {child.pid}")
    await asyncio.sleep(float(faults.get("slow_start_s", 0)))
    die(faults, "arguments")
    say("Load weight begin. avail mem=70.00 GB")
    die(faults, "load")
    say("Load weight end. elapsed=1.00 s, type=Qwen3ForCausalLM, avail mem=60.00 GB, mem usage=8.00 GB.")
    capture_lines(arguments, faults)
    double = Double(arguments, config)
    app = web.Application(client_max_size=64 << 20)
    app.router.add_get("/ready", double.ready)
    app.router.add_get("/server_info", double.server_info)
    app.router.add_get("/v1/loads", double.loads)
    app.router.add_post("/flush_cache", double.flush)
    app.router.add_post("/tokenize", double.tokenize)
    app.router.add_post("/generate", double.generate)
    app.router.add_post("/start_profile", double.start_profile)
    app.router.add_post("/stop_profile", double.stop_profile)
    app.router.add_post("/double/faults", double.set_faults)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, arguments.text("host", "127.0.0.1"), arguments.number("port", 30000))
    await site.start()
    say("INFO:     Uvicorn running on http://127.0.0.1 (Press CTRL+C to quit)")
    say("The server is fired up and ready to roll!")
    die(faults, "ready")
    await asyncio.Event().wait()


def main() -> None:
    """Run the double."""
    asyncio.run(serve(Arguments.of(sys.argv[1:]), json.loads(os.environ.get("SPECJOULE_DOUBLE", "{}"))))


if __name__ == "__main__":
    main()
