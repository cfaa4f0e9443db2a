"""Stand-in for the few vLLM kernels that SGLang takes on a CPU without AMX."""
