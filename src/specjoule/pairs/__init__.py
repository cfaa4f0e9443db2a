"""Pairs: speculative cells divided by their plain partners, and what follows from the ratio."""
