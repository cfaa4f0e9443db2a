# SpecJoule: the energy per committed token of speculative decoding.
#
#   snakemake                                  the default study, on this machine
#   snakemake --configfile config/other.yaml   another study
#   snakemake --profile slurm                  the paper's full grid through Slurm
import os
import shlex
import signal
import sys
from pathlib import Path

from specjoule.blocks.split import submission_ranks
from specjoule.cluster.queue import earlier_jobs, queue_listing
from specjoule.cluster.requests import extra_flags, light_resources, measure_resources
from specjoule.engines.sglang.prefetch import checkpoints_digest, needs_prefetch
from specjoule.errors import SpecJouleError
from specjoule.workflow import open_project, overrides_over
from specjoule.tables.items import ITEMS

if not workflow.configfiles:

    configfile: "config/config.yaml"


STUDY_FILE = Path(workflow.configfiles[-1])
try:
    PROJECT = open_project(STUDY_FILE, overrides_over(STUDY_FILE, config))
    BLOCKS = {block.id: block for block in PROJECT.blocks}
    SITE = PROJECT.site
except SpecJouleError as error:
    raise WorkflowError(str(error)) from None


report: "workflow/report/workflow.rst"


wildcard_constraints:
    block="[^/]+",
    model="[^/]+",
    item="|".join(ITEMS),


PYTHON = shlex.quote(sys.executable)
HOOK_BEFORE = f"{SITE.hooks.before}\n" if SITE.hooks.before else ""

if "SLURM_JOB_ID" in os.environ:
    # Slurm's warning before the time limit reaches every process of the job; it is meant for the block's own.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)

workflow.register_resource("submitted", SITE.limits.submitted)


localrules:
    all,
    raw,
    figures,
    prefetch,
    fetch_checkpoints,


rule all:
    default_target: True
    input:
        [str(PROJECT.raw_file(cell)) for cell in PROJECT.cells],
        PROJECT.figures / "manifest.json",


include: "workflow/rules/prepare.smk"
include: "workflow/rules/measure.smk"
include: "workflow/rules/collect.smk"
include: "workflow/rules/figures.smk"
include: "workflow/rules/report.smk"


onsuccess:
    shell("{PYTHON} workflow/scripts/say_what_was_made.py {PROJECT.arguments}")
