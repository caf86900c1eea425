"""Qualify, sign and release configurations of the ninfer engine."""

__version__ = "0.1.0"
