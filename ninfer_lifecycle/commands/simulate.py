"""`ninfer simulate`: what the cache would reuse of a trace, beside other policies in the same number of bytes."""

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.simulate.generators import GENERATORS, Generated, generator
from ninfer_lifecycle.simulate.readers import Trace, open_trace
from ninfer_lifecycle.simulate.runs import Comparison, compare, kinds
from ninfer_lifecycle.simulate.settings import Overrides, Setting, setting_of
from ninfer_lifecycle.simulate.table import standard_traces, write_table

DEFAULT_PROFILE = "qwen38-5090-fanout"


def simulate(
    traces: Annotated[list[Path] | None, typer.Argument(help="trace file, gzipped or not", metavar="[TRACE]")] = None,
    profile: Annotated[str, typer.Option("--profile", help="profile whose capacities are simulated")] = DEFAULT_PROFILE,
    trace_format: Annotated[str | None, typer.Option("--format", help="jsonl, mooncake or log; none: told from the "
                                                                      "first line")] = None,
    from_log: Annotated[Path | None, typer.Option(help="an engine's request log, as the trace")] = None,
    generate: Annotated[str | None, typer.Option(help=f"a made-up trace: {', '.join(GENERATORS)}")] = None,
    requests: Annotated[int | None, typer.Option(min=1, help="most requests of a file, or length of a made-up trace"
                                                 )] = None,
    seed: Annotated[int, typer.Option(help="of a made-up trace")] = 1,
    model: Annotated[str | None, typer.Option(help="config.json, a directory with one, 27b or tiny; none: the "
                                                   "profile's")] = None,
    costs: Annotated[str | None, typer.Option(help="cost presets: a file or a name; none: by the profile's model"
                                              )] = None,
    kv_capacity: Annotated[int | None, typer.Option(min=64, help="device KV in tokens; none: the profile's")] = None,
    host_kv_mib: Annotated[int | None, typer.Option(min=0, help="host KV; none: the profile's")] = None,
    baselines: Annotated[bool, typer.Option(help="run the other policies too")] = True,
    table: Annotated[bool, typer.Option("--table", help="hit shares of the generated traces and the given ones in "
                                                        "pools of several sizes, as Markdown; 1 when another policy "
                                                        "reuses more")] = False,
    as_json: Json = False,
) -> None:
    """Run a trace through the cache's own policy code, without tensors."""
    if table and as_json:
        raise UsageError("--table is Markdown, and --json is not", "Leave one of them out; a trace alone has --json.")
    if table:
        raise typer.Exit(write_table(standard_traces(traces or (), requests)))
    trace = _chosen(traces or [], trace_format, from_log, generate, requests, seed)
    setting = setting_of(profile, Overrides(model, costs, kv_capacity, host_kv_mib))
    found = compare(trace, setting.capacities, setting.costs, time.perf_counter_ns, setting.policy,
                    **({} if baselines else {"others": ()}))
    if as_json:
        print_json(as_document(found, setting))
        return
    for note in setting.notes:
        typer.echo(note, err=True)
    for line in as_text(found):
        typer.echo(line)


def _chosen(traces: list[Path], trace_format: str | None, from_log: Path | None, generate: str | None,
            requests: int | None, seed: int) -> Trace:
    """The one trace that the command line names. Raises UsageError."""
    if len(traces) + (from_log is not None) + (generate is not None) != 1:
        raise UsageError("give one trace", "ninfer simulate TRACE, or --from-log FILE, or --generate NAME")
    if generate is not None:
        generator(generate)
        return Generated(generate, requests, seed)
    if from_log is not None:
        return open_trace(from_log, "log", requests)
    return open_trace(traces[0], trace_format, requests)


def as_document(found: Comparison, setting: Setting) -> dict[str, Any]:
    """The result as JSON. Times are in seconds or microseconds as named; sizes in bytes."""
    ours, report, capacities = found.ours, found.ours.report, setting.capacities
    return {
        "requests": report.requests, "refused": report.refused, "prompt_tokens": ours.prompt_tokens,
        "reused_tokens": report.reused_tokens, "recomputed_tokens": report.recomputed_tokens,
        "hit_share": ours.hit_share, "predicted_prefill_s": report.prefill_ns / 1e9,
        "evictions": report.evictions, "demoted_pages": report.demoted_pages, "peak": dict(sorted(report.peak.items())),
        **kinds(report),
        "planner": {name: {"calls": t.calls, "p50_us": t.p50_us, "p99_us": t.p99_us, "max_us": t.max_us}
                    for name, t in (("plan", ours.plan), ("publish_plan", ours.publish))},
        "seconds": ours.seconds, "pool_bytes": found.pool_bytes, "baselines": found.others,
        "capacities": {name: getattr(capacities, name) for name in sorted(capacities.__slots__)},
        "costs": setting.costs.source, "notes": list(setting.notes),
    }


def as_text(found: Comparison) -> list[str]:
    """The result as lines."""
    ours, report = found.ours, found.ours.report
    lines = [
        f"requests            {report.requests:,} ({report.refused:,} refused: longer than the device's KV capacity)",
        f"prompt tokens       {ours.prompt_tokens:,}: {report.reused_tokens:,} reused, "
        f"{report.recomputed_tokens:,} recomputed",
        f"hit share           {ours.hit_share:.4f}",
        *(f"  {name:<18}{share:.4f}" for name, share in found.others.items()),
        f"paths               {_counts(kinds(report)['paths'])}",
        f"misses              {_counts(kinds(report)['misses'])}",
        f"evictions           {report.evictions:,} (pages demoted: {report.demoted_pages:,})",
        f"peak occupancy      {_counts(report.peak)}",
        f"planner             plan p50 {_us(ours.plan.p50_us)}, p99 {_us(ours.plan.p99_us)}; publish_plan p50 "
        f"{_us(ours.publish.p50_us)}, p99 {_us(ours.publish.p99_us)}",
        f"simulated in        {ours.seconds:.1f} s, {report.requests / max(ours.seconds, 1e-9):,.0f} requests a second",
    ]
    if found.others:
        lines.append(f"others have {found.pool_bytes / (1 << 30):.1f} GiB, as ours on both tiers")
    return lines


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"


def _us(value: float | None) -> str:
    return "none" if value is None else f"{value:,.0f} us"
