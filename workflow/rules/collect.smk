# From raw files to a block's tables: judged rows, and what tables and figures need of the nested columns.


rule collect_block:
    input:
        lambda wildcards: PROJECT.record(wildcards.block),
    output:
        PROJECT.rows("{block}"),
        list(PROJECT.parts("{block}").values()),
    log:
        PROJECT.logs / PROJECT.name / "collect" / "{block}.log",
    resources:
        **light_resources(SITE),
    params:
        rules=PROJECT.validity_digest,
    message:
        "Judging the windows of block {wildcards.block}"
    shell:
        "{PYTHON} workflow/scripts/collect_block.py {PROJECT.arguments} --block {wildcards.block} --output {output[0]} 2> {log} || {{ cat {log} >&2; exit 1; }}"
