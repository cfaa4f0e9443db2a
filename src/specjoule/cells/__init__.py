"""Cells: the points of a study, each with the digest of what could change its number."""
