# One job a block: everything that is measured on one board in one go. It starts each server once, measures the cells
# that are missing or stale, and keeps each finished cell at once in a store of its own; see docs/architecture.md.

RANKS = submission_ranks(list(BLOCKS.values()))


def flags(block, rule_name):
    """Flags for sbatch; a job waits for those that an earlier, killed main process left in the queue for its block."""
    plugin = workflow.executor_plugin.name if workflow.executor_plugin else ""
    slurm = plugin.removeprefix("snakemake-executor-plugin-") == "slurm"
    before = earlier_jobs(rule_name, Path.cwd(), queue_listing()) if slurm else ()
    return extra_flags(block, SITE, before)


for block in BLOCKS.values():

    rule:
        name:
            f"measure_{block.id}"
        input:
            ancient(prepared(block.model)),
        output:
            # Existing files are kept, so that a rerun replaces single cells; the record is made anew each time.
            update([str(PROJECT.raw_file(cell)) for cell in block.cells]),
            PROJECT.record(block.id),
        log:
            PROJECT.logs / PROJECT.name / f"{block.id}.log",
        # Every model thinly first: the submission order is drawn up beforehand.
        priority: len(BLOCKS) - RANKS[block.id]
        # A board is never shared by two blocks. On the host's own processor that takes every core.
        threads: workflow.cores if PROJECT.study.gpus[block.gpu].device == "cpu" else 4
        resources:
            **measure_resources(PROJECT.study, block, SITE),
            slurm_extra=lambda wildcards, block=block: flags(block, f"measure_{block.id}"),
        params:
            block=block.id,
            # The one digest of the cells' hashes: a list here would be stored once per output.
            digest=block.digest,
        message:
            "Measuring block {params.block}"
        shell:
            "{HOOK_BEFORE}exec {PYTHON} workflow/scripts/measure_block.py {PROJECT.arguments} --block {params.block} --log {log}"


rule raw:
    """Only measure."""
    input:
        [str(PROJECT.raw_file(cell)) for cell in PROJECT.cells],
