"""The release and the version of the measurement protocol."""

__version__ = "0.1.0"

PROTOCOL_VERSION = 1
"""Version of *how* a cell is measured. Part of every cell's hash: raise it whenever a change in code changes a number,
and only then; a changed comment must never cost a GPU hour."""
