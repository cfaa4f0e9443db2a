"""Every reason code, in one enumeration: why a row is partial, infeasible, failed or invalid, or a value missing.

Codes are fixed before the data. A new way to be wrong gets a new code here, with a sentence for `docs/reasons.md`.
"""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """Outcome of a run, as the raw rows hold it."""

    OK = "ok"
    PARTIAL = "partial"
    INFEASIBLE = "infeasible"
    FAILED = "failed"


class Validity(StrEnum):
    """Verdict of collect on a row."""

    VALID = "valid"
    INVALID = "invalid"
    NOT_MEASURED = "not_measured"


class Reason(StrEnum):
    """A reason code; `Reason.X.text` is its sentence, `Reason.X.group` the kind of fact it states."""

    text: str
    group: str

    def __new__(cls, value: str, group: str, text: str) -> Reason:
        """Make a member that is its code and carries its group and sentence."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.group = group
        member.text = text
        return member

    @classmethod
    def of(cls, code: str) -> Reason:
        """Return the reason of that code. Raises ValueError for a code that is not in the enumeration."""
        for reason in cls:
            if reason.value == code:
                return reason
        raise ValueError(f"'{code}' is not a reason code")

    # -- outcome of the run: the cell has no energy at the concurrency asked for
    CAPACITY = "capacity", "run", "The server ran fewer requests at once than asked; kept at its realized batch."
    OOM_LOAD = "oom_load", "run", "Out of memory while the weights were loaded."
    OOM_CAPTURE = "oom_capture", "run", "Out of memory while graphs were captured."
    OOM_RUN = "oom_run", "run", "Out of memory while the batch ran."
    DRAFTER_REFUSED = "drafter_refused", "run", "The engine refused this drafter for this model."
    UNSUPPORTED_MODEL = "unsupported_model", "run", "The engine does not know this architecture."
    NOT_ENOUGH_PROMPTS = "not_enough_prompts", "run", "The corpus holds fewer distinct prompts than one batch needs."
    CONTEXT_TOO_LONG = "context_too_long", "run", "Prompt plus answer exceed what the model can hold."
    CONTEXT_NOT_SUPPORTED = "context_not_supported", "run", "The engine cannot bring prompts to a length asked for."
    ENGINE_HANG = "engine_hang", "run", "The engine stopped answering."
    ENGINE_CRASH = "engine_crash", "run", "The engine ended by itself."
    PORT_TAKEN = "port_taken", "run", "The engine's port was taken by another process."
    NODE_TROUBLE = "node_trouble", "run", "The node or its driver failed."
    STREAM_BROKEN = "stream_broken", "run", "An answer's stream ended early."
    INTERRUPTED = "interrupted", "run", "The job was ended before the cell finished."

    # -- accounting
    DENOMINATOR_MISMATCH = (
        "denominator_mismatch",
        "accounting",
        "Tokens delivered, counted and summed over requests do not agree.",
    )
    ROUNDS_INCONSISTENT = (
        "rounds_inconsistent",
        "accounting",
        "Rounds, committed tokens and verify width contradict each other.",
    )
    HISTOGRAM_INCONSISTENT = (
        "histogram_inconsistent",
        "accounting",
        "The acceptance histogram does not add up to rounds and accepted drafts.",
    )
    COUNTS_MISSING = "counts_missing", "accounting", "The engine did not report a count that this row needs."
    SHORT_ANSWER = "short_answer", "accounting", "With EOS ignored, a request delivered fewer tokens than asked for."
    NO_TOKENS = "no_tokens", "accounting", "No token was committed in the window."
    ENGINE_BATCH_DISAGREES = (
        "engine_batch_disagrees",
        "accounting",
        "The engine's and the client's realized batch disagree.",
    )
    CLIENT_BEHIND = "client_behind", "accounting", "The client fell behind the stream; its stamps are not the server's."

    # -- prompts and cache
    REPEATED_PROMPTS = (
        "repeated_prompts",
        "prompts",
        "A prompt occurs twice in the batch, or in two batches of the cell.",
    )
    CACHE_HIT = "cache_hit", "prompts", "Prompt tokens came from a prefix cache."

    # -- meter
    NO_METER = "no_meter", "meter", "No energy was recorded."
    METER_GAP = "meter_gap", "meter", "The trace has a gap inside the window."
    OUTSIDE_TRACE = "outside_trace", "meter", "The window is not inside the recorded trace."
    WINDOW_TOO_SHORT = (
        "window_too_short",
        "meter",
        "The window is too short for the meter's refresh to be measured well.",
    )
    COUNTER_RESET = "counter_reset", "meter", "The energy counter was reset inside the window."
    COUNTER_DECREASE = "counter_decrease", "meter", "The energy counter went backwards."
    COUNTER_FROZEN = "counter_frozen", "meter", "The energy counter stopped moving inside the window."
    ZERO_ENERGY = "zero_energy", "meter", "The counter did not move over the window; zero is never taken for an energy."
    POWER_ABOVE_LIMIT = "power_above_limit", "meter", "Mean power is above 1.2 times the board's power limit."
    CROSS_CHECK = "cross_check", "meter", "Counter and integrated power disagree by more than the limit."
    BOARD_LOST = "board_lost", "meter", "The board disappeared from the bus."
    COUNTER_NOT_SUPPORTED = "counter_not_supported", "meter", "The board has no energy counter."
    NO_PERMISSION = "no_permission", "meter", "The driver refused the reading or setting to this user."
    DRIVER_RELOADED = "driver_reloaded", "meter", "The driver was reloaded inside the window."
    MIG_BOARD = "mig_board", "meter", "The board is split by MIG; its counter covers all parts."
    LAG_NOT_CALIBRATED = "lag_not_calibrated", "meter", "The board's counter lag was never calibrated."
    CALIBRATION_STALE = "calibration_stale", "meter", "The calibration was made with another driver."

    # -- board and machine
    FOREIGN_PROCESSES = "foreign_processes", "board", "Another process computed on the board."
    THERMAL_SLOWDOWN = "thermal_slowdown", "board", "The board slowed down because of heat."
    HARDWARE_SLOWDOWN = "hardware_slowdown", "board", "The board's hardware slowed it down or braked its power."
    CLOCK_NOT_OBEYED = "clock_not_obeyed", "board", "The locked clock was not the one that ran."
    BUSY_HOST = "busy_host", "board", "The host's load was above the limit; its energy is not this cell's alone."
    NOT_SETTLED = "not_settled", "board", "The board did not reach its temperature band before measuring."
    CAPTURE_NOT_PROVEN = "capture_not_proven", "board", "It is not shown that captured graphs ran."
    CAPTURE_FELL_BACK = "capture_fell_back", "board", "The engine fell back to running without captured graphs."
    DRAFT_WIDTH_CHANGED = "draft_width_changed", "board", "The number of verified positions changed within the window."
    BLOCK_DRIFT = (
        "block_drift",
        "board",
        "Plain at the block's end differs from plain at its start by more than the limit.",
    )

    # -- content
    DEGENERATE_OUTPUT = "degenerate_output", "content", "Too many answers repeat themselves before their natural end."

    # -- pairs
    NO_PLAIN_PARTNER = "no_plain_partner", "pair", "No finished plain cell in the same segment."
    PLAIN_INVALID = "plain_invalid", "pair", "The plain side of the pair is invalid."
    PLAIN_PARTIAL = "plain_partial", "pair", "The plain side did not reach the asked concurrency."
    KEYS_DIFFER = "keys_differ", "pair", "The two sides differ in something other than the drafter."

    # -- block record
    NO_CLOSING_PLAIN = "no_closing_plain", "block", "The block has no closing plain launch; its drift is unknown."

    # -- a value that is missing
    NOT_REPORTED = "not_reported", "missing", "The engine or board does not report this value."
    SHARED_NODE = "shared_node", "missing", "Host energy is unknown: the node is shared with other jobs."
    NOT_ALL_QUALIFY = "not_all_qualify", "missing", "Energy belongs to the window; not every request of it qualifies."
