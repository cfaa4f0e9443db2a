# What must be there before anything is measured.

EMBEDDED_MODEL = ".cache/models/smollm2-135m-instruct"


rule prepare_embedded_model:
    output:
        f"{EMBEDDED_MODEL}/SOURCE.json",
    log:
        "results/logs/prepare_embedded_model.log",
    params:
        directory=EMBEDDED_MODEL,
    message:
        "Fetching and converting SmolLM2-135M-Instruct (once, about a minute)"
    shell:
        "{PYTHON} -m specjoule.engines.embedded --output {params.directory} > {log} 2>&1 || {{ tail -n 3 {log} >&2; exit 1; }}"


rule fetch_checkpoints:
    """A model's and its drafters' pinned checkpoints, fetched where the hub can be reached; compute nodes are offline."""
    output:
        PROJECT.prefetched("{model}"),
    log:
        PROJECT.logs / PROJECT.name / "prefetch" / "{model}.log",
    params:
        digest=lambda wildcards: checkpoints_digest(PROJECT.study, wildcards.model),
    message:
        "Fetching the checkpoints of {wildcards.model}"
    shell:
        "{PYTHON} -m specjoule.engines.sglang.prefetch {PROJECT.prefetch_arguments} --model {wildcards.model} --stamp {output} > {log} 2>&1 || {{ tail -n 3 {log} >&2; exit 1; }}"


rule prefetch:
    """Everything that measuring needs from the hub; run it on a login node."""
    input:
        [
            PROJECT.prefetched(m)
            for m in dict.fromkeys(b.model for b in BLOCKS.values())
            if needs_prefetch(PROJECT.study, m)
        ],


def prepared(model):
    """Files that a model's blocks wait for."""
    reference = PROJECT.study.file.engine.name == "reference"
    if reference and PROJECT.study.models[model].checkpoint.prepare == "embedded-smollm2":
        return rules.prepare_embedded_model.output
    return [PROJECT.prefetched(model)] if needs_prefetch(PROJECT.study, model) else []
