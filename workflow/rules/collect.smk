# From raw files to one table of judged rows a block.


rule collect_block:
    input:
        lambda wildcards: PROJECT.record(wildcards.block),
    output:
        PROJECT.collected / PROJECT.name / "blocks" / "{block}.parquet",
    log:
        PROJECT.logs / PROJECT.name / "collect" / "{block}.log",
    resources:
        **light_resources(SITE),
    params:
        rules=PROJECT.validity_digest,
    message:
        "Judging the windows of block {wildcards.block}"
    shell:
        "{PYTHON} workflow/scripts/collect_block.py {PROJECT.arguments} --block {wildcards.block} --output {output} 2> {log} || {{ cat {log} >&2; exit 1; }}"
