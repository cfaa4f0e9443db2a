"""Is this machine fit to measure? Small probes, each a finding with a remedy."""
