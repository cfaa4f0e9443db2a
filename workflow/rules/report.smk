# One self-contained HTML page a study: figures and tables with captions, method, exclusions, drift, meter, versions.

REPORT_PAGES = {
    "about": "1 Read first",
    "exclusions": "4 What counts",
    "drift": "4 What counts",
    "versions": "5 Versions",
}
"""Pages beside the tables, and where the report lists them."""


rule report_pages:
    input:
        PROJECT.figures / "manifest.json",
        [PROJECT.record(block) for block in BLOCKS],
        [PROJECT.rows(block) for block in BLOCKS],
    output:
        [
            report(
                PROJECT.figures / "report" / f"{name}.html",
                caption=caption(name),
                category=category,
                labels={"page": name},
            )
            for name, category in REPORT_PAGES.items()
        ],
        [
            report(
                PROJECT.figures / "report" / f"{item.name}.html",
                caption=caption(item.name),
                category="3 Tables",
                labels={"table": item.question},
            )
            for item in ITEMS.values()
            if item.kind == "table"
        ],
    log:
        PROJECT.logs / PROJECT.name / "report_pages.log",
    params:
        constants=PROJECT.analysis_digest,
        directory=PROJECT.figures / "report",
    message:
        "Writing the pages of the report"
    shell:
        "{PYTHON} workflow/scripts/build_report_pages.py {PROJECT.arguments} --output {params.directory} 2> {log} || {{ cat {log} >&2; exit 1; }}"


rule report:
    """The report of this study as one HTML file."""
    input:
        rules.report_pages.output,
        rules.paper_figures.output,
    output:
        PROJECT.figures / "report.html",
    log:
        PROJECT.logs / PROJECT.name / "report.log",
    params:
        # Snakemake reads the report off its own workflow: a second one in the same folder, which changes nothing.
        again=PROJECT.snakemake_arguments,
    message:
        "Bundling {output}"
    shell:
        "{PYTHON} -m snakemake --nolock --cores 1 --report {output} {params.again} --quiet all -- report_pages > {log} 2>&1 || {{ tail -n 5 {log} >&2; exit 1; }}"
