"""What a run costs: estimated before it in tokens, and in time where the configuration ran before; told after it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ninfer_lifecycle.evidence import StepEvidence
from ninfer_lifecycle.gates.tally import Evidence


@dataclass(frozen=True, slots=True)
class Estimate:
    """seconds None: no earlier run tells the pace; it shows after the first steps. like: the run that told it."""

    tokens: int = 0
    seconds: int | None = None
    like: str | None = None

    def __str__(self) -> str:
        if self.seconds is None:
            return f"about {self.tokens:,} tokens; the time left shows after the first steps"
        return f"about {self.tokens:,} tokens, {self.seconds:,} s at the pace of {self.like}"


def estimate(tokens: int, runs_dir: Path, configuration_sha256: str) -> Estimate:
    """The estimate by the newest run of this configuration that was finished. What cannot be read is passed over."""
    for path in sorted(runs_dir.glob("*/summary.json"), reverse=True):
        try:
            summary = json.loads(path.read_text(encoding="utf-8"))
            if summary["configurationSha256"] == configuration_sha256 and summary["estimatedTokens"] > 0:
                seconds = summary["wallUs"] * tokens // summary["estimatedTokens"] // 1_000_000
                return Estimate(tokens, int(seconds), path.parent.name)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return Estimate(tokens)


def prober_share_ppm(steps: Sequence[StepEvidence]) -> int | None:
    """Time that the prober took for itself, of all; None of no steps."""
    wall = sum(step.wall_us for step in steps)
    return sum(step.prober_us for step in steps) * 1_000_000 // wall if wall else None


def summary_of_run(evidence: Evidence, estimated_tokens: int, configuration_sha256: str | None = None
                   ) -> dict[str, Any]:
    """summary.json: what was estimated, what it came to."""
    return {
        "configurationSha256": configuration_sha256, "estimatedTokens": estimated_tokens,
        "computedTokens": sum(record.computed_tokens or 0 for record in evidence.own),
        "decodedTokens": sum(record.completion_tokens or 0 for record in evidence.own),
        "requests": len(evidence.requests), "wallUs": sum(step.wall_us for step in evidence.steps),
        "proberUs": sum(step.prober_us for step in evidence.steps), "proberPpm": prober_share_ppm(evidence.steps),
    }
