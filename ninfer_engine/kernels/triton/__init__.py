"""The Triton implementation of every operation; the contract of each stands at its torch reference of the same name.

A module holds kernels and their launchers. Launchers take what the reference takes, never wait for the device, and pick
block sizes from shapes alone, so that equal calls give equal bits.
"""

import os

# Products and sums may fuse: bits are compared on one device, never between devices. Said aloud, because Triton's own
# default changes with its version. Draws do not depend on it: they multiply by powers of two or do not add.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
