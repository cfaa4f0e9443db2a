"""Blocks: what one job measures on one board; their runner, store and journal."""
