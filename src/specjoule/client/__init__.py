"""The streaming client between a server and the time stamps: submits a wave at once, stamps, watches its own lag."""

from specjoule.client.stamps import Event, Parsed, Piece, parse
from specjoule.client.stream import Limits, StreamEnded, Wave, run_wave

__all__ = ["Event", "Limits", "Parsed", "Piece", "StreamEnded", "Wave", "parse", "run_wave"]
