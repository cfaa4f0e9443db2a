"""Prompt corpora."""
