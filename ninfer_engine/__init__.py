"""An inference engine for hybrid models whose context cache keeps siblings hot."""

__version__ = "0.1.0"
