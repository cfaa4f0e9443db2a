"""Columns that Markdown and LaTeX show of wide tables; the CSV holds all."""

from __future__ import annotations

_WHERE = ("model", "gpu", "corpus", "concurrency")

VERDICTS = (
    *_WHERE, "capture", "locked_mhz", "context_tokens", "drafter", "saving_median", "ratio_half_range", "saving_low",
    "saving_high", "saving_totals", "n_seeds", "df", "verdict", "detection_floor", "interval_note",
)  # fmt: skip
CAPTURE = (
    "model", "gpu", "concurrency", "drafter", "e_plain_off_j", "e_plain_on_j", "e_spec_off_j", "e_spec_on_j",
    "saving_off", "saving_on", "c_plain", "c_spec", "shrinks", "identity_holds", "n_seeds",
)  # fmt: skip
INTERVALS = (
    "model", "gpu", "corpus", "capture", "locked_mhz", "concurrency", "itl_plain_ms", "itl_fastest_ms",
    "fastest_drafter", "interval_ratio",
)  # fmt: skip
TARGETS = (
    "model", "gpu", "corpus", "statistic", "target_ms", "plain_setting", "plain_j", "plain_itl_ms", "plain_seeds_over",
    "spec_setting", "spec_j", "spec_itl_ms", "spec_seeds_over", "spec_setting_tightened", "spec_fallback", "saving",
)  # fmt: skip
EQUAL = ("model", "gpu", "corpus", "drafter", "concurrency", "spec_j", "plain_words", "plain_j", "spec_itl_ms",
         "plain_itl_ms")  # fmt: skip
CORPORA = (
    "model", "gpu", "drafter", "concurrency", "corpus", "a_spec", "saving_median", "saving_low", "saving_high",
    "saving_totals", "tasks", "n_seeds", "verdict",
)  # fmt: skip
MIXES = ("mix", "shares", "model", "gpu", "drafter", "concurrency", "saving_median", "ratio_half_range", "n_seeds")
SHARES = (
    "model", "gpu", "drafter", "concurrency", "saving_corpus", "costing_corpus", "gain_j_per_token", "cost_j_per_token",
    "share_of_saving_corpus",
)  # fmt: skip
EXCEPTIONS = (
    *_WHERE, "drafter_longer", "drafter_shorter", "a_longer", "a_shorter", "ratio_median_longer",
    "ratio_median_shorter", "explained_by",
)  # fmt: skip
NGRAM = (
    "model", "gpu", "corpus", "concurrency", "draft_tokens", "a_spec", "saving_median", "saving_low", "saving_high",
    "best_length", "marginal", "verdict",
)  # fmt: skip
CLOCKS = (
    "model", "gpu", "drafter", "concurrency", "locked_mhz", "clock_default_mhz", "energy_saving", "throughput_loss",
    "j_per_token", "itl_mean_ms", "n_seeds",
)  # fmt: skip
CONTEXT = ("model", "gpu", "drafter", "concurrency", "context_tokens", "a_spec", "saving_median", "saving_low",
           "saving_high", "verdict")  # fmt: skip
NEEDED = (
    *_WHERE, "drafter", "verify_width", "break_even_a", "a_spec", "needed_gain", "needed_acceptance", "r_e_window",
    "answer",
)  # fmt: skip
FACTORS = (*_WHERE, "drafter", "gamma_t", "gamma_board", "gamma_total", "host_spec_j", "host_plain_j", "total_spec_j",
           "total_plain_j")  # fmt: skip
INSTRUMENTATION = (*_WHERE, "drafter", "ratio_study", "ratio_minimal", "ratio_change", "ratio_change_half_range",
                   "plain_change", "spec_change", "negligible", "n_seeds")  # fmt: skip
EOS = (*_WHERE, "drafter", "ratio_full", "ratio_to_eos", "saving_change", "cut_share", "n_seeds")
FIRST = (*_WHERE, "drafter", "saving_median", "saving_median_first_wave", "saving_change", "ratio_half_range",
         "ratio_half_range_first_wave", "n_seeds")  # fmt: skip
CURSE = (*_WHERE, "held_out", "folds", "drafters", "apparent_saving", "held_out_saving", "optimism", "regret",
         "distinct_winners")  # fmt: skip
BUDGET = (
    *_WHERE, "drafter", "n_pairs", "meter_percent", "lag_percent", "drift_percent", "board_percent", "launch_percent",
    "prompts_percent", "instrumentation_percent", "total_percent", "expected_percent", "largest",
)  # fmt: skip
