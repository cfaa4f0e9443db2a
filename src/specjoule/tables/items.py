"""Every table and figure by name: its question, the rule that decides it, and where it is computed and drawn.

This module imports nothing heavy, so that a workflow may list the items while it is parsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["table", "figure"]


@dataclass(frozen=True)
class Item:
    """One table or figure of the write-up."""

    name: str
    kind: Kind
    question: str
    rule: str
    """How the answer follows from the data, in one or two sentences; also the caption's second part."""
    windows: tuple[str, ...]
    """Windows it needs: 'generation', 'decode', or 'nested' for per-request columns and traces of the raw files."""
    compute: str
    """'module:function' within specjoule: analysis context in, data frame out."""
    draw: str | None = None
    """'module:function' within specjoule.figures: data frame in, figure out."""
    shown: str | None = None
    """'module:NAME' of the columns that Markdown and LaTeX show (default: all)."""

    @property
    def files(self) -> tuple[str, ...]:
        """Names of the files it consists of."""
        suffixes = ("csv", "md", "tex") if self.kind == "table" else ("pdf", "png", "csv")
        return tuple(f"{self.name}.{s}" for s in suffixes)


_ALL: tuple[Item, ...] = (
    Item(
        "table_cells", "table", "What did every cell consume and deliver, and does it count?",
        "Sums over the waves of each attempt; nothing is left out, excluded cells stand with their reasons.",
        ("generation",), "tables.compute:cells", shown="tables.cells_table:SHOWN",
    ),
    Item(
        "table_schemes", "table", "Which drafters were run on which model, and how wide do they verify?",
        "What occurs in the data, with training origin and draft parameters where the catalogue knows them.",
        ("generation",), "tables.compute:schemes", shown="tables.schemes:SHOWN",
    ),
    Item(
        "table_best_drafter", "table", "Which drafter spends least energy per committed token at each concurrency?",
        "Lowest median over seeds of the paired ratios, same board, settings, prompts and seed on both "
        "sides; saving is 1 "
        "minus that ratio, with the pooled interval. 'tie': the runner-up is equivalent within the margin; "
        "'ahead': the "
        "difference excludes zero.",
        ("generation",), "tables.compute:best", shown="tables.best_drafter:SHOWN",
    ),
    Item(
        "table_verdicts", "table", "What does each drafter change, how sure are we, and could we have told?",
        "Median of paired ratios with half-range; pooled and own interval; saves or costs where the false "
        "discovery rate "
        "over this table is held and the effect exceeds the detection floor.",
        ("generation",), "tables.compute:verdicts", shown="tables.shown:VERDICTS",
    ),
    Item(
        "table_capture", "table", "How much of the saving is owed to a baseline without captured graphs?",
        "Same block and seed with capture off and on; the saving shrinks under capture where plain gains more from it.",
        ("generation",), "tables.compute:capture", shown="tables.shown:CAPTURE",
    ),
    Item(
        "table_latency_per_batch", "table", "How fast is plain decoding, and the fastest drafter, at each batch?",
        "Median over seeds of the mean interval between a user's tokens; the fastest drafter is not the cheapest.",
        ("generation",), "tables.compute:intervals_per_batch", shown="tables.shown:INTERVALS",
    ),
    Item(
        "table_latency_targets", "table", "Which measured configuration spends least under a latency target?",
        "Least energy among measured configurations that meet the target, energy and latency from the same cells; "
        "infeasible means on the measured grid. Seeds over: seeds whose own latency misses the target.",
        ("generation",), "tables.compute:targets", shown="tables.shown:TARGETS",
    ),
    Item(
        "table_equal_energy", "table", "Which plain batch would spend as little as speculation does?",
        "Smallest measured plain concurrency that spends no more per token; filling it waits for arrivals.",
        ("generation",), "tables.compute:equal_energy", shown="tables.shown:EQUAL",
    ),
    Item(
        "table_corpora", "table", "What does the text change?",
        "Tokens per round and saving per text, drafter and batch; ratio of totals beside the median of pairs.",
        ("generation",), "tables.compute:corpora", shown="tables.shown:CORPORA",
    ),
    Item(
        "table_mixes", "table", "What does a workload of several texts save?",
        "Energy of each text weighted by output tokens on both sides, per seed, then the median.",
        ("generation",), "tables.compute:mixes", shown="tables.shown:MIXES",
    ),
    Item(
        "table_break_even_shares", "table", "At which share of a text that saves does a mixed workload start to save?",
        "cost/(gain + cost) from median energies per token of the two texts.",
        ("generation",), "tables.compute:balance_shares", shown="tables.shown:SHARES",
    ),
    Item(
        "table_language", "table", "Do drafters keep their accepted length and saving in Romansh?",
        "Romansh over English at the same model, drafter, width and batch; all answers and those that "
        "qualify; intervals "
        "resample documents; filtered energy only where every request of the window qualifies.",
        ("generation", "nested"), "tables.compute:language",
    ),
    Item(
        "table_language_counts",
        "table", "How many answers came in the language asked for, and where did the rest drift?",
        "Language of each answer up to its first end of sequence, by function words.",
        ("generation", "nested"), "tables.compute:language_counts",
    ),
    Item(
        "table_scheme_pairs", "table", "Does the drafter that commits more per round also spend less?",
        "All pairs of drafters of one model, board, batch and text. Pairs share baselines, boards and drafters: their "
        "number is no sample size.",
        ("generation",), "tables.compute:scheme_pairs",
    ),
    Item(
        "table_scheme_exceptions", "table", "Where does committing more not spend less, and what explains it?",
        "Pairs of drafters in which the longer one does not have the lower ratio: it verifies more "
        "positions, or drafts "
        "more serial steps, or neither.",
        ("generation",), "tables.compute:scheme_exceptions", shown="tables.shown:EXCEPTIONS",
    ),
    Item(
        "table_ngram_length", "table", "How many n-gram proposals are worth their verification?",
        "Median paired ratio by number of proposals; marginal is the change from the next shorter length.",
        ("generation",), "tables.compute:ngram_length", shown="tables.shown:NGRAM",
    ),
    Item(
        "table_clocks", "table", "Does a lower clock save anything beside speculation?",
        "Locked over default clock for the same drafter, batch, block and seed; median over seeds.",
        ("generation",), "tables.compute:clocks", shown="tables.shown:CLOCKS",
    ),
    Item(
        "table_context", "table", "How does the saving move with the length of the context?",
        "Median paired ratio at each context length of places that were measured at two or more.",
        ("generation",), "tables.compute:context_length", shown="tables.shown:CONTEXT",
    ),
    Item(
        "table_draft_share", "table", "How much of a round's energy is drafting?",
        "Runs with and without the draft forward, growing alike; no split where random tokens alone move the energy.",
        ("generation",), "tables.compute:draft_share",
    ),
    Item(
        "table_break_even", "table", "How many tokens must a round commit, and would a better drafter help?",
        "Break-even is the ratio of energy per step; a round commits at most the verify width.",
        ("decode", "generation"), "tables.compute:needed", shown="tables.shown:NEEDED",
    ),
    Item(
        "table_outcomes", "table", "Which cells do not count, and why?",
        "Cells in no pair by reason code: infeasible, partial and invalid ones, and plain cells that failed "
        "their pair.",
        ("generation",), "tables.compute:outcomes",
    ),
    Item(
        "table_drift", "table", "How far did each block drift from its first to its closing plain launch?",
        "Closing plain over first plain in J/token, minus 1; median over the reference cells.",
        ("generation",), "tables.compute:drift",
    ),
    Item(
        "table_floor", "table", "How large must a difference be to be seen at all?",
        "Closing plain over first plain in J/token, pooled over blocks; the smallest difference told from none at 95 % "
        "by so many blocks (t quantile at the pooled degrees of freedom, at least 0.5 % of one pair).",
        ("generation",), "tables.compute:floor",
    ),
    Item(
        "table_boards", "table", "How much do single boards differ?",
        "Means over configurations of each board relative to the mean over boards.",
        ("generation",), "tables.compute:boards",
    ),
    Item(
        "table_settings", "table", "Which server settings differ between the two sides of a pair?",
        "Resolved settings of a drafter's launch against those of plain and plain-matched in the same segment; what "
        "makes it speculative is left out. Kind 'none': compared, and nothing differs.",
        (), "tables.compute:settings",
    ),
    Item(
        "table_instrumentation", "table", "Do the flags that count and prove move the answer?",
        "Paired ratio under the study's flags over that under minimal flags, same block and seed, minus 1; median over "
        "seeds. Negligible: within half a percent.",
        ("generation",), "tables.compute:instrumentation", shown="tables.shown:INSTRUMENTATION",
    ),
    Item(
        "table_agreement", "table", "How often does a drafter deliver plain's very text?",
        "Whole answers equal to plain's of the same segment and batch, beside plain against a second plain launch.",
        ("generation", "nested"), "tables.compute:agreement",
    ),
    Item(
        "table_factors",
        "table", "By which factors is speculation faster and thriftier, on the board and with the host?",
        "Time, board energy and board plus host energy of plain over speculative per token; host where it was read.",
        ("generation",), "tables.compute:factors", shown="tables.shown:FACTORS",
    ),
    Item(
        "table_to_first_eos", "table", "Does ignoring the end of sequence change the answer?",
        "Energy and tokens of every wave up to the first end of sequence in the batch, paired again.",
        ("generation", "nested"), "tables.compute:to_first_eos", shown="tables.shown:EOS",
    ),
    Item(
        "table_first_wave", "table", "What would the first batch alone have said?",
        "The same pairs from wave 0 only, as a study with one batch a cell measures it.",
        ("generation",), "tables.compute:first_wave", shown="tables.shown:FIRST",
    ),
    Item(
        "table_winners_curse", "table", "How much of the winner's saving is luck of selection?",
        "Best drafter chosen without each seed (or half of the prompts) and evaluated there.",
        ("generation",), "tables.compute:winners_curse", shown="tables.shown:CURSE",
    ),
    Item(
        "table_error_budget", "table", "Which disturbance contributes how much to one pair's ratio?",
        "Standard deviations of the log ratio of one pair by source, percent; sources overlap and do not add up.",
        ("generation",), "tables.compute:error_budget", shown="tables.shown:BUDGET",
    ),
    Item(
        "table_published", "table", "How do published values compare with what is measured here?",
        "Every value known of the reproduced studies; the difference in units of measured noise and rounding; what "
        "these data cannot answer says why. On simulated boards this is plausibility, never evidence.",
        ("generation", "nested"), "tables.compute:published", shown="tables.published:SHOWN",
    ),
    Item(
        "figure_saving", "figure", "How does the saving change with concurrency?",
        "Paired saving of every seed and the median over seeds; the grey band is what plain relaunched shows against "
        "plain.",
        ("generation",), "tables.compute:saving", "figures.saving:draw_saving",
    ),
    Item(
        "figure_break_even", "figure", "Does a round commit more tokens than its step costs?",
        "Speculation saves energy where tokens committed per request and round exceed the ratio of energy per step. "
        "The band is what plain relaunched shows against plain.",
        ("decode", "generation"), "tables.compute:break_even", "figures.break_even:draw_break_even",
    ),
    Item(
        "figure_intensity", "figure", "Why does the saving turn, and earlier on one board than on the other?",
        "Intensity of a verification step by the model's sizes, against the board's balance point.",
        ("generation",), "tables.compute:intensity", "figures.intensity:draw_intensity",
    ),
    Item(
        "figure_roofline", "figure", "How close do verification steps come to the board's roof?",
        "Verified positions times the model's operations over the window's time; a trend, not single-stream truth.",
        ("generation",), "tables.compute:roofline", "figures.intensity:draw_roofline",
    ),
    Item(
        "figure_survival", "figure", "How far do accepted prefixes reach?",
        "Share of rounds that keep at least j drafts, pooled over batches and seeds, before cuts.",
        ("generation", "nested"), "tables.compute:survival", "figures.survival:draw_survival",
    ),
    Item(
        "figure_marginal_width", "figure", "What may one more position cost before it no longer pays?",
        "S_j over the tokens that j - 1 positions commit, if the proposals before it keep their distribution.",
        ("generation", "nested"), "tables.compute:survival", "figures.survival:draw_marginal_width",
    ),
    Item(
        "figure_capture", "figure", "How do captured graphs change the saving?",
        "Median paired saving with capture off and on, same blocks.",
        ("generation",), "tables.compute:capture", "figures.capture:draw_capture",
    ),
    Item(
        "figure_frontier", "figure", "Which configurations are worth running at a given latency?",
        "Every measured configuration; steps join those that no other beats in both, plain and speculative apart.",
        ("generation",), "tables.compute:frontier", "figures.frontier:draw_frontier",
    ),
    Item(
        "figure_language", "figure", "How much of their accepted length do drafters keep in Romansh?",
        "Romansh over English of tokens per round; intervals resample documents.",
        ("generation", "nested"), "tables.compute:language_points", "figures.language:draw_language",
    ),
    Item(
        "figure_corpora", "figure", "How does the saving depend on the text?",
        "Median paired saving with its pooled 95 % interval.",
        ("generation",), "tables.compute:corpus_points", "figures.corpora:draw_corpora",
    ),
    Item(
        "figure_draft_share", "figure", "How much of a round's energy is drafting, at each batch?",
        "Runs with and without the draft forward; no split where the control forbids it.",
        ("generation",), "tables.compute:draft_share", "figures.clocks:draw_draft_share",
    ),
    Item(
        "figure_clocks", "figure", "What does a locked clock save, and what does it cost?",
        "Locked over default clock for the same drafter, batch, block and seed; median over seeds.",
        ("generation",), "tables.compute:clocks", "figures.clocks:draw_clocks",
    ),
    Item(
        "figure_gaps", "figure", "How long does a user wait between tokens?",
        "All gaps of all requests at the largest batch; tokens of one chunk arrive together.",
        ("generation", "nested"), "tables.compute:gaps", "figures.gaps:draw_gaps",
    ),
    Item(
        "figure_timeline", "figure", "How did a block run?",
        "Power and clock of the first segment of the data, with its windows.",
        ("generation", "nested"), "tables.compute:timeline", "figures.timeline:draw_timeline",
    ),
    Item(
        "figure_drift", "figure", "What do two equal things differ by?",
        "Closing plain over first plain per block, and each seed's ratio over its configuration's mean.",
        ("generation",), "tables.compute:drift_points", "figures.timeline:draw_drift",
    ),
)  # fmt: skip

ITEMS: dict[str, Item] = {item.name: item for item in _ALL}
"""Items by name, in the order of the write-up."""
