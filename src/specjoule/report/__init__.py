"""Pages of the report that Snakemake bundles: what it was, tables, exclusions, drift, versions."""
