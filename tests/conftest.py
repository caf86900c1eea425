"""Triton decides once in a process, when it is first imported, whether it compiles or interprets its library: for tests
it interprets. It is imported here, before anything else can import it; the processes that tests start compile.

A shell starts what runs in its background with SIGINT ignored, and children inherit it: tests that interrupt could not.
"""

import os
import signal
import sys
from importlib.util import find_spec

if find_spec("triton") is not None and "triton" not in sys.modules:
    os.environ["TRITON_INTERPRET"] = "1"
    import triton
    import triton.language

    del os.environ["TRITON_INTERPRET"]
    triton.knobs.runtime.interpret = True

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

from held import nothing_held

__all__ = ["nothing_held"]
