"""SpecJoule: the energy per committed token of speculative decoding, paired with plain decoding on the same board.

The packages follow the flow of a study: `study` (configuration) → `cells` → `blocks` (engine + meter, `engines` and
`meters`) → `windows` (raw rows and their validity) → `pairs` → `tables` and `figures`.
"""

from specjoule.version import PROTOCOL_VERSION, __version__

__all__ = ["PROTOCOL_VERSION", "__version__"]
