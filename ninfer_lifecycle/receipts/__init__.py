"""Receipts: what a qualification found, signed, and checked again by whoever reads it. Pure but for the store.

Nothing outside this package reads a receipt's raw bytes: `verify.verify` returns a VerifiedReceipt or the step that
refused, and everything else (gates of releases, reports, the index) takes a VerifiedReceipt.
"""
