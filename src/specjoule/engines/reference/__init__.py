"""The `reference` engine: a real language model in this process, batched greedy verification, exact rollback.

It is the engine of the embedded default and the yardstick for the others: small enough to read, its committed text
equals plain greedy decoding token by token. Importing the package is cheap; PyTorch is imported by `start`.
"""

from specjoule.engines.reference.engine import ReferenceEngine

__all__ = ["ReferenceEngine"]
