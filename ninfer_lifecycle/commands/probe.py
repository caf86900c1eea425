"""`ninfer probe list | describe | run`: the probe plans, and one of them against an engine that runs already."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ninfer_lifecycle.commands import completing
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.commands.qualify import (
    expected_of,
    findings,
    key_of,
    measured_document,
    show_measured,
    wiring,
)
from ninfer_lifecycle.gates.plans import PLAN_PARTS
from ninfer_lifecycle.probes.plans import make_plan, questions_of, require_plan
from ninfer_lifecycle.qualify.measure import measure
from ninfer_lifecycle.qualify.orchestrate import EXIT_CODES
from ninfer_lifecycle.qualify.overrides import parse_sizes
from ninfer_lifecycle.qualify.prepare import Wanted, resolve

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__)


@app.command("list")
def list_plans(as_json: Json = False) -> None:
    """List the plans with the questions that they answer."""
    if as_json:
        print_json([{"plan": name, "questions": list(questions_of(name))} for name in PLAN_PARTS])
        return
    for name in PLAN_PARTS:
        first, *more = questions_of(name)
        typer.echo(f"{name:17} {first}" + (f" (and {len(more)} more)" if more else ""))


@app.command()
def describe(
    plan: Annotated[str, typer.Argument(help="a plan of `ninfer probe list`", autocompletion=completing.plans)],
    profile: Annotated[str, typer.Option(help="profile whose sizes and counts to describe it with")] = "tiny-cpu",
    as_json: Json = False,
) -> None:
    """Show a plan's steps in order, what it claims, and about how many tokens it computes."""
    require_plan(plan)
    section = resolve(Wanted(profile, Path("runs"), plan=plan)).probes
    planned = make_plan(section, "0" * 32)
    if as_json:
        print_json({"plan": plan, "profile": profile, "questions": list(questions_of(plan)),
                    "estimatedTokens": planned.schedule.estimated_tokens, "steps": list(planned.schedule.steps),
                    "claims": [claim.model_dump(mode="json", by_alias=True, exclude_none=True)
                               for claim in planned.summary.claims]})
        return
    for question in questions_of(plan):
        typer.echo(question)
    typer.echo(f"\nsteps ({planned.schedule.estimated_tokens:,} tokens, about):")
    for step in planned.steps:
        typer.echo(f"  {step.name}")
    summary = planned.summary
    if summary.claims:
        typer.echo("\nclaims:")
    for claim in summary.claims:
        typer.echo(f"  {claim.name}: {claim.kind}, {claim.trials} trial{'s' if claim.trials > 1 else ''}")


@app.command("run")
def run_plan(
    plan: Annotated[str, typer.Argument(help="a plan of `ninfer probe list`", autocompletion=completing.plans)],
    *,
    base_url: Annotated[str, typer.Option(help="where the engine answers, as http://127.0.0.1:8080")],
    profile: Annotated[str, typer.Option(help="profile whose sizes, counts and gates to use")] = "tiny-cpu",
    sizes: Annotated[str, typer.Option(help="template sizes in tokens, in place of the profile's")] = "",
    api_key_file: Annotated[Path | None, typer.Option(help="file with the engine's API key")] = None,
    baseline_url: Annotated[str | None, typer.Option(help="another engine to compare throughput with")] = None,
    runs_dir: Annotated[Path, typer.Option(help="where run directories go")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Run a plan against an engine that runs already. No restart, no receipt; exits as `ninfer qualify` does."""
    wanted = Wanted(profile, runs_dir, plan=plan, sizes=parse_sizes(sizes), baseline=baseline_url,
                    command=("ninfer", *sys.argv[1:]))
    prose = Console(stderr=True, highlight=False)
    measured = measure(wanted, base_url, key_of(api_key_file),
                       wiring(prose, Path("models"), expected_of(wanted, restarts=False)))
    if as_json:
        print_json(measured_document(measured))
    else:
        show_measured(measured, findings())
    raise typer.Exit(int(EXIT_CODES[measured.verdict.result]))
