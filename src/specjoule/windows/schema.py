"""The raw window file: every column, its type, unit and meaning, in one place.

One Parquet file a cell, one row a wave and window. `docs/data-dictionary.md` is generated from this module, and the
writer refuses a row with a column that is not here. A name is never reused for another thing; nested columns sit on
the generation row and are null on the decode row.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

SCHEMA_VERSION = 1
"""Version of this table's shape; a reader refuses a newer one."""


@dataclass(frozen=True)
class Column:
    """One column: Arrow type, unit (`-` for none) and what it means."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    section: str
    nullable: bool = True


REQUEST_TYPE = pa.struct(
    [
        pa.field("prompt_id", pa.string()),
        pa.field("document_id", pa.string()),
        pa.field("prompt_tokens", pa.int32()),
        pa.field("committed_tokens", pa.int32()),
        pa.field("finish_reason", pa.string()),
        pa.field("first_eos_position", pa.int32()),
        pa.field("answer_language", pa.string()),
        pa.field("language_ok", pa.bool_()),
        pa.field("distinct_token_ratio", pa.float32()),
        pa.field("repeated_ngram_share", pa.float32()),
        pa.field("degenerate", pa.bool_()),
        pa.field("rounds", pa.int32()),
        pa.field("proposed_tokens", pa.int32()),
        pa.field("accepted_draft_tokens", pa.int32()),
        pa.field("acceptance_histogram", pa.list_(pa.int32())),
        pa.field("cut_tokens", pa.int32()),
        pa.field("cached_tokens", pa.int32()),
        pa.field("chunk_t_ns", pa.list_(pa.int64())),
        pa.field("chunk_tokens", pa.list_(pa.int32())),
        pa.field("output_digest", pa.string()),
        pa.field("output_token_ids", pa.list_(pa.int32())),
        pa.field("text", pa.string()),
    ]
)

REFRESH_TYPE = pa.struct(
    [
        pa.field("read_start_ns", pa.int64()),
        pa.field("read_end_ns", pa.int64()),
        pa.field("counter_j", pa.float64()),
        pa.field("channel", pa.string()),
    ]
)

SAMPLE_TYPE = pa.struct(
    [pa.field("t_ns", pa.int64()), pa.field("channel", pa.string()), pa.field("value", pa.float64())]
)

_S, _I, _F, _B = pa.string(), pa.int64(), pa.float64(), pa.bool_()


def _columns() -> tuple[Column, ...]:
    out: list[Column] = []

    def add(section: str, *rows: tuple[str, pa.DataType, str, str] | tuple[str, pa.DataType, str, str, bool]) -> None:
        out.extend(Column(r[0], r[1], r[2], r[3], section, r[4] if len(r) == 5 else True) for r in rows)

    add(
        "What was asked",
        ("study", _S, "-", "name of the study's configuration", False),
        ("site", _S, "-", "where it was measured, as the site calls itself"),
        ("model", _S, "-", "target model, a name in config/models.yaml", False),
        ("gpu", _S, "-", "kind of board, a name in config/gpus.yaml", False),
        ("n_gpus", _I, "boards", "boards of the run (1 in protocol version 1)", False),
        ("drafter", _S, "-", "drafter, a name in config/drafters.yaml; 'plain' is the baseline", False),
        ("scheme", _S, "-", "how the drafter works: plain, ngram, layer-skip, mtp, ...", False),
        ("draft_tokens", _I, "positions", "k: proposed per request and round", False),
        ("verify_width", _I, "positions", "w = k + 1: verified per request and round", False),
        ("concurrency", _I, "requests", "requests submitted at once: what was asked for", False),
        ("corpus", _S, "-", "prompt pool, a name in config/corpora.yaml", False),
        ("language", _S, "-", "language the corpus asks for (ISO 639-1)"),
        ("context_tokens", _I, "tokens", "prompt length asked for, where a study sets one"),
        ("seed", _I, "-", "draws the prompts and their order, the same on both sides of a pair", False),
        ("replicate", _I, "-", "independent launch of all servers of a block", False),
        ("wave", _I, "-", "0-based number of the batch within the cell", False),
        ("waves", _I, "-", "batches the cell consists of, fixed beforehand", False),
        ("window", _S, "-", "'generation' (submission to last token) or 'decode' (batch constant, no prefill)", False),
        ("capture", _B, "-", "graphs were asked to be captured", False),
        ("locked_mhz", _I, "MHz", "SM clock locked; null: default clocks"),
        ("instrumentation", _S, "-", "'minimal': without the flags for counters and proofs; null: with them"),
        ("weight_dtype", _S, "-", "type of the weights", False),
        ("kv_dtype", _S, "-", "type of the KV cache", False),
        ("sampling", _S, "-", "'greedy'", False),
        ("chat_template", _S, "-", "digest of the chat template applied"),
        ("ignore_eos", _B, "-", "answers run to max_new_tokens past their natural end", False),
        ("max_new_tokens", _I, "tokens", "answer length asked for", False),
        ("ngram_state", _S, "-", "'cold' (flushed before each wave) or 'warm'", False),
        ("pool_digest", _S, "-", "digest of the prompt pool"),
        ("grid", _S, "-", "named parts of the study that hold this cell, comma-separated"),
    )
    add(
        "Identity",
        ("cell_hash", _S, "-", "digest of everything that could change the number", False),
        ("schema_version", _I, "-", "version of this table's shape", False),
        ("protocol_version", _I, "-", "version of how a cell is measured", False),
        ("block_id", _S, "-", "what one job measures on one board", False),
        ("block_order", _I, "-", "0-based position of the cell within its segment", False),
        ("segment_id", _S, "-", "the part of a block that one job attempt measured on one board", False),
        ("launch", _I, "-", "0-based number of the server launch within the segment", False),
        ("role", _S, "-", "'cell', or 'reference' for the closing plain", False),
        ("attempt", _I, "-", "1-based number of this cell's attempt over all segments", False),
        ("boot_id", _S, "-", "the host's boot, which the monotonic clock counts from"),
        ("git_commit", _S, "-", "commit of the project, with '-dirty' where it had changes"),
        ("started_at", _S, "-", "UTC time when the cell began (ISO 8601)", False),
    )
    add(
        "Outcome of the run",
        ("status", _S, "-", "ok, partial, infeasible or failed", False),
        ("reason", _S, "-", "reason code where status is not ok"),
        ("reason_detail", _S, "-", "what the engine said"),
        ("flags", pa.list_(_S), "-", "reason codes the meter and runner raised for this window; judged at collect"),
    )
    add(
        "Versions",
        ("engine", _S, "-", "reference, sglang, simulated, ...", False),
        ("engine_version", _S, "-", "version of the engine and the libraries that set its numbers", False),
        ("model_revision", _S, "-", "revision of the target's weights"),
        ("drafter_revision", _S, "-", "revision of the drafter's weights"),
    )
    add(
        "Energy",
        ("t_start_ns", _I, "ns", "start of the window on the monotonic clock"),
        ("t_end_ns", _I, "ns", "end of the window on the monotonic clock"),
        ("wall_offset_ns", _I, "ns", "wall clock minus monotonic clock at the segment's start"),
        ("energy_start_j", _F, "J", "counter at the window's start, edge-corrected"),
        ("energy_end_j", _F, "J", "counter at the window's end, edge-corrected"),
        ("energy_j", _F, "J", "energy of the window on the board; null with a flag where unknown"),
        ("energy_uncertainty_j", _F, "J", "remaining uncertainty of energy_j (95 %)"),
        ("energy_naive_j", _F, "J", "difference of the last refreshes before the two ends"),
        ("meter", _S, "-", "nvml, rapl (measured), estimate or simulated (not measured)", False),
        ("assumed_w_per_core", _F, "W", "estimate only: assumed power of one busy core, which its joules scale with"),
        ("meter_refresh_ms", _F, "ms", "median time between refreshes of the counter"),
        ("meter_lag_ms", _F, "ms", "lag of the counter, corrected; null: not calibrated"),
        ("power_mean_w", _F, "W", "energy_j over the window's duration"),
        ("idle_power_w", _F, "W", "power of the loaded, idle server before the waves"),
        ("power_integral_j", _F, "J", "integral of instant power over the window: a second look at the same sensor"),
        ("host_energy_j", _F, "J", "energy of CPU packages and DRAM in the window"),
        ("host_meter", _S, "-", "meter of host_energy_j"),
        ("energy_true_j", _F, "J", "simulated boards only: exact energy of the window"),
    )
    add(
        "Tokens and rounds",
        ("rounds", _I, "rounds", "verification rounds summed over requests, after the prefill"),
        ("steps", _I, "steps", "forward passes of the batch, after the prefill"),
        ("proposed_tokens", _I, "tokens", "drafts proposed, summed over requests and rounds"),
        ("accepted_draft_tokens", _I, "tokens", "drafts kept, before EOS or the limit cut"),
        ("committed_tokens", _I, "tokens", "delivered in the window by all requests; never the requested limit"),
        ("committed_per_round", _F, "tokens/round", "A: committed after the prefill over rounds"),
        ("cut_tokens", _I, "tokens", "kept drafts that EOS or the limit cut off"),
        ("eos_requests", _I, "requests", "requests whose text holds an end of sequence"),
        ("truncated_requests", _I, "requests", "requests ended by the length limit"),
        ("unique_prompts", _I, "prompts", "distinct prompts in the wave"),
        ("cached_tokens", _I, "tokens", "prompt tokens taken from a prefix cache"),
        ("prompt_tokens", _I, "tokens", "prompt tokens of all requests"),
        ("degenerate_requests", _I, "requests", "requests that repeat themselves before their natural end"),
        ("language_ok_requests", _I, "requests", "requests that answer in the language asked for"),
    )
    add(
        "Batch",
        ("realized_batch", _F, "requests", "n: time-weighted mean of requests running in the window"),
        ("realized_batch_min", _I, "requests", "fewest requests running at any time of the window"),
        ("realized_batch_peak", _I, "requests", "most requests running at any time of the window"),
        ("realized_batch_engine", _F, "requests", "the same mean by the engine's own count"),
        ("capacity_requests", _I, "requests", "requests the engine can run at once; null: no limit known"),
    )
    add(
        "Time",
        ("duration_s", _F, "s", "t_end_ns - t_start_ns"),
        ("throughput_tok_s", _F, "tokens/s", "committed_tokens over the duration"),
        ("ttft_mean_ms", _F, "ms", "mean time from submission to a request's first token"),
        ("itl_mean_ms", _F, "ms/token", "mean over requests of (last - first token time)/(tokens - 1)"),
        ("itl_p50_ms", _F, "ms", "median gap between the tokens of one user (tokens of one chunk share a time)"),
        ("itl_p95_ms", _F, "ms", "95th percentile of those gaps"),
        ("itl_p99_ms", _F, "ms", "99th percentile of those gaps"),
        ("stall_max_ms", _F, "ms", "longest gap of any request"),
        ("client_lag_ms", _F, "ms", "largest delay of the client behind the stream"),
    )
    add(
        "Board and host",
        ("gpu_uuid", _S, "-", "the board"),
        ("gpu_name", _S, "-", "the board's product name"),
        ("driver", _S, "-", "driver version"),
        ("power_limit_w", _F, "W", "enforced power limit"),
        ("sm_clock_mean_mhz", _F, "MHz", "mean SM clock in the window"),
        ("sm_clock_min_mhz", _F, "MHz", "lowest SM clock in the window"),
        ("temperature_start_c", _F, "degC", "board temperature at the window's start"),
        ("temperature_max_c", _F, "degC", "highest board temperature in the window"),
        (
            "power_capped_share",
            _F,
            "-",
            "share of the window's time with software power capping (normal at large batch)",
        ),
        ("throttle_reasons", pa.list_(_S), "-", "clock-event reasons seen in the window"),
        ("foreign_processes", _I, "processes", "other compute processes seen on the board"),
        ("ecc", _B, "-", "error correction on"),
        ("capture_verified", _B, "-", "captured graphs are shown to have run; null: the engine cannot tell"),
        ("draft_width_changed", _B, "-", "the number of verified positions changed within the wave"),
        ("host", _S, "-", "host name"),
        ("cpu_model", _S, "-", "CPU product name"),
        ("numa_node", _I, "-", "NUMA node of the board"),
        ("governor", _S, "-", "CPU frequency governor"),
        ("load_average", _F, "processes", "1-minute load average at the cell's start"),
    )
    add(
        "Nested, on the generation row",
        ("requests", pa.list_(REQUEST_TYPE), "-", "every request: counts, histogram before the cut, arrivals, text"),
        ("refreshes", pa.list_(REFRESH_TYPE), "ns, J", "every counter refresh around the window, dated between reads"),
        ("samples", pa.list_(SAMPLE_TYPE), "ns", "power, clocks, temperature, ... around the window, by channel"),
        ("engine_notes", _S, "-", "what else the engine said of the wave (JSON)"),
        ("counters_before", _S, "-", "the engine's counters before the wave (JSON)"),
        ("counters_after", _S, "-", "the engine's counters after the wave (JSON)"),
    )
    return tuple(out)


COLUMNS: tuple[Column, ...] = _columns()
BY_NAME: dict[str, Column] = {c.name: c for c in COLUMNS}
NESTED: frozenset[str] = frozenset(
    {"requests", "refreshes", "samples", "engine_notes", "counters_before", "counters_after"}
)
SCALARS: tuple[str, ...] = tuple(c.name for c in COLUMNS if c.name not in NESTED)

ARROW_SCHEMA: pa.Schema = pa.schema(
    [pa.field(c.name, c.type, nullable=c.nullable) for c in COLUMNS],
    metadata={"specjoule_schema_version": str(SCHEMA_VERSION)},
)

COLLECTED: tuple[Column, ...] = (
    Column("validity", _S, "-", "verdict of collect: valid, invalid or not_measured", "Added at collect", False),
    Column("validity_reason", _S, "-", "reason codes of the verdict, comma-separated", "Added at collect"),
    Column("block_drift", _F, "-", "closing plain's J/token over the first plain's, minus 1", "Added at collect"),
    Column("raw_file", _S, "-", "the raw file the row came from", "Added at collect", False),
)
"""Columns that exist only in the collected tables."""
