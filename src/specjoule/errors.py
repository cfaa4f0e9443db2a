"""Errors that a user is meant to read: one plain sentence that says what, where, why and what to do."""


class SpecJouleError(Exception):
    """Base of every error whose message is written for the user; the command line prints it without a traceback."""


class ConfigurationError(SpecJouleError):
    """A study, catalogue or prompt file that cannot be used; the message names file, key and remedy."""


class StoreError(SpecJouleError):
    """A stored cell, journal or raw file that cannot be read or written."""


class PairingError(SpecJouleError):
    """Two sides that must not be divided by each other."""


class MeterError(SpecJouleError):
    """A meter that cannot be opened or read; the message says how to allow it."""
