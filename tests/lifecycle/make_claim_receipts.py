"""Makes receipts of plans with claims, on the fault-injecting engine: how tests/data/receipts/claims came to be.

    python tests/lifecycle/make_claim_receipts.py DIRECTORY

The files in the repository were made once and are never made again: receipts that are out in the world have to verify
for ever, and these stand for them. Run it for a new version of the plans, into a directory of that version; what
earlier versions were made from stays here to be read.
"""

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from shutil import copy

from fault_host import FaultHost
from fault_model import Fault
from test_qualify import Bench

from ninfer_lifecycle.qualify.orchestrate import Signing, qualify
from ninfer_lifecycle.qualify.prepare import Wanted

PLANS: Sequence[tuple[str, str, tuple[Fault, ...]]] = (
    ("plans3", "{plan: release, sizes: [200], parts: [recall], soakSeconds: 1, topLogprobs: 2}", ()),
    ("plans3-failed", "{plan: pressure-reduced, sizes: [200]}", (Fault.DROP_UNDER_PRESSURE,)),
    ("plans3-open", "{plan: multi-session, sizes: [200]}", (Fault.VAST_MEMORY,)),
)
EARLIER: Sequence[tuple[str, str, tuple[Fault, ...]]] = (
    ("plans1", "{plan: release, planVersion: 1, sizes: [200]}", ()),
    ("plans2", "{plan: release, sizes: [200], parts: [recall, soak], soakSeconds: 1, topLogprobs: 2, "
               "baseline: BASELINE}", ()),
    ("plans2-failed", "{plan: concurrency, parts: [equivalence], sizes: [200], topLogprobs: 2}",
     (Fault.SHIFT_LOGPROBS,)),
    ("plans2-open", "{plan: recall, sizes: [200]}", (Fault.CANNOT_RECALL,)),
)


def main(target: Path) -> None:
    """One receipt a plan, all by one key whose public half stays."""
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        for name, probes, faults in PLANS:
            directory = Path(work) / name
            directory.mkdir()
            bench = Bench(directory, FaultHost(*faults))
            profile = directory / "pretend.yaml"
            text = profile.read_text().replace("name: pretend", f"name: {name}").replace(
                "{plan: fanout, sizes: [200, 300]}", probes.replace("BASELINE", str(directory / "baseline.yaml")))
            (directory / "baseline.yaml").write_text(profile.read_text().replace("name: pretend", "name: baseline"))
            profile.write_text(text)
            qualify(Wanted(str(profile), directory / "runs"), Signing(target, Path(work) / "state"), bench.wiring())
        for bundle in target.glob("*/*.sigstore.json"):
            bundle.unlink()  # the other file of a receipt holds the same payload
        copy(Path(work) / "state/keys/qualifier.pub", target / "qualifier.pub")


if __name__ == "__main__":
    from ninfer_lifecycle.qualify import prepare
    prepare.engine_tree_sha256 = lambda: "2" * 64  # the fake engine's
    main(Path(sys.argv[1]))
