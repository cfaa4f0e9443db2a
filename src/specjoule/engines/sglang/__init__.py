"""The `sglang` engine: the study's server, launched, measured, watched and ended by us."""
