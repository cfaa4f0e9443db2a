# Every table and figure from the collected rows; one item can be asked for by its file name.

ITEM_FILES = [PROJECT.figures / file for item in ITEMS.values() for file in item.files]


rule paper_figures:
    input:
        [PROJECT.rows(block) for block in BLOCKS],
    output:
        ITEM_FILES,
        PROJECT.figures / "manifest.json",
    log:
        PROJECT.logs / PROJECT.name / "paper_figures.log",
    params:
        constants=PROJECT.analysis_digest,
        directory=PROJECT.figures,
    message:
        "Building {params.directory}"
    shell:
        "{PYTHON} workflow/scripts/build_figures.py {PROJECT.arguments} --output {params.directory} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule figures:
    """Only tables and figures."""
    input:
        PROJECT.figures / "manifest.json",
