"""Gates: evidence and thresholds in, a verdict out. Pure: no clock, no files, no network, integers only.

The same code runs where a receipt is made and where it is verified, so that a stated verdict can be derived again.
"""
