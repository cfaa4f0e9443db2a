"""Statistics of paired ratios: intervals that honour the design, verdicts, ties, selection, error budget."""
