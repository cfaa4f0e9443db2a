# Every table and figure from the collected rows; one item can be asked for by its file name.

CAPTIONS = Path(workflow.basedir) / "workflow" / "report"


def caption(name):
    """Caption of a table, figure or page in the report."""
    return f"../report/{name if (CAPTIONS / f'{name}.rst').exists() else 'item'}.rst"


def item_file(item, file):
    """An item's file; the report shows figures as PNG."""
    path = PROJECT.figures / file
    if file.endswith(".png"):
        return report(path, caption=caption(item.name), category="2 Figures", labels={"figure": item.question})
    return path


ITEM_FILES = [item_file(item, file) for item in ITEMS.values() for file in item.files]


rule paper_figures:
    input:
        [PROJECT.rows(block) for block in BLOCKS],
        [part for block in BLOCKS for part in PROJECT.parts(block).values()],
    output:
        ITEM_FILES,
        PROJECT.figures / "manifest.json",
    log:
        PROJECT.logs / PROJECT.name / "paper_figures.log",
    threads: 2
    resources:
        **light_resources(SITE),
    params:
        constants=PROJECT.analysis_digest,
        directory=PROJECT.figures,
    message:
        "Building {params.directory}"
    shell:
        "{PYTHON} workflow/scripts/build_figures.py {PROJECT.arguments} --output {params.directory} --workers {threads} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule figures:
    """Only tables and figures."""
    input:
        PROJECT.figures / "manifest.json",
