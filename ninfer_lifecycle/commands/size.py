"""`ninfer size`: flags from intent, the memory that they cost on each tier, and the proof by simulation."""

from dataclasses import asdict, replace
from typing import Annotated, Any

import typer

from ninfer_engine.context.sizing import Intent, derive
from ninfer_engine.context.types import PAGE_TOKENS, Policy
from ninfer_lifecycle.commands.output import Json, print_json
from ninfer_lifecycle.errors import ExitCode, UsageError
from ninfer_lifecycle.simulate.proof import Plan, Proof, Smaller, kv_pages, prove, what_smaller_loses
from ninfer_lifecycle.simulate.settings import costs_of
from ninfer_lifecycle.simulate.shapes import KV_BYTES, shapes_of

_MOST_FORKS = 4096  # of all templates together: a proof runs some thousand requests and no more


def size(
    template: Annotated[list[int], typer.Option(min=1, help="tokens of a template; may be repeated")],
    concurrency: Annotated[int, typer.Option(min=1, max=256, help="C: sequences that run at once")] = 1,
    forks: Annotated[int, typer.Option(min=0, help="S: sibling forks of each template")] = 4,
    fork_tokens: Annotated[int, typer.Option(min=1, help="tokens that a fork adds to its template")] = 1024,
    model: Annotated[str, typer.Option(help="config.json, a directory with one, 27b or tiny")] = "27b",
    kv_dtype: Annotated[str, typer.Option(help=f"of keys and values: {', '.join(KV_BYTES)}")] = "bf16",
    kv_capacity: Annotated[int | None, typer.Option(min=64, help="device KV in tokens; none: C of the longest "
                                                                 "sequences")] = None,
    host_kv_mib: Annotated[int | None, typer.Option(min=0, help="host KV in MiB; none: all that is stored")] = None,
    prefill_chunk: Annotated[int, typer.Option(min=64, help="tokens of one prefill step")] = 1024,
    costs: Annotated[str, typer.Option(help="cost presets: a file or a name")] = "hybrid-27b-5090",
    as_json: Json = False,
) -> None:
    """Derive catalog and slots for an intent; 1 when the simulation finds a fork that is not hot."""
    if kv_dtype not in KV_BYTES:
        raise UsageError(f"no kv-dtype {kv_dtype!r}", f"kinds: {', '.join(KV_BYTES)}")
    if len(template) * max(1, forks) > _MOST_FORKS:
        raise UsageError(f"{len(template)} templates with {forks} forks are more than the {_MOST_FORKS} of a proof",
                         "size for fewer: what must be kept at once is what counts")
    intent = Intent(concurrency, forks, tuple(template), fork_tokens)
    policy, shapes = Policy(prefill_chunk=prefill_chunk), shapes_of(model)
    device, host = kv_pages(intent)
    plan = Plan(intent, derive(intent, policy), shapes, kv_dtype, costs_of(costs), policy, device, host)
    if kv_capacity is not None:
        plan = replace(plan, device_pages=-(-kv_capacity // PAGE_TOKENS))
    if host_kv_mib is not None:
        plan = replace(plan, host_pages=(host_kv_mib << 20) // shapes.page_bytes(kv_dtype))
    proof, rows = prove(plan), tuple(what_smaller_loses(plan))
    if as_json:
        print_json(as_document(plan, proof, rows))
    else:
        for line in as_text(plan, proof, rows):
            typer.echo(line)
    if proof.forks_hot < proof.forks or proof.refused:
        typer.echo("the simulation finds forks that are not hot with these sizes: raise --kv-capacity or --host-kv-mib",
                   err=True)
        raise typer.Exit(int(ExitCode.FAILED))


def flags_of(plan: Plan) -> dict[str, int | str]:
    """The engine's flags, by option name."""
    return {
        "--max-concurrency": plan.intent.concurrency,
        "--expected-forks": plan.intent.forks,
        "--max-private-continuations": plan.sizes.private_catalog,
        "--device-state-slots": plan.sizes.device_state_extra,
        "--host-state-slots": plan.sizes.host_state_slots,
        "--kv-capacity": plan.device_pages * PAGE_TOKENS,
        "--host-kv-mib": -(-plan.host_pages * plan.shapes.page_bytes(plan.kv_dtype) >> 20),
        "--kv-dtype": plan.kv_dtype,
    }


def memory_of(plan: Plan) -> dict[str, dict[str, int]]:
    """Bytes on each tier; images on the device include the working slots of running sequences."""
    page, image = plan.shapes.page_bytes(plan.kv_dtype), plan.shapes.image_bytes
    slots = plan.intent.concurrency + plan.sizes.device_state_extra
    device = {"kv": plan.device_pages * page, "images": slots * image}
    host = {"kv": plan.host_pages * page, "images": plan.sizes.host_state_slots * image}
    return {"device": device | {"total": sum(device.values())}, "host": host | {"total": sum(host.values())}}


def as_document(plan: Plan, proof: Proof, rows: tuple[Smaller, ...]) -> dict[str, Any]:
    """The result as JSON; memory in bytes."""
    return {"flags": flags_of(plan), "memory": memory_of(plan), "model": asdict(plan.shapes),
            "image_bytes": plan.shapes.image_bytes, "page_bytes": plan.shapes.page_bytes(plan.kv_dtype),
            "proof": asdict(proof), "smaller": [{"what": row.what} | asdict(row.proof) for row in rows],
            "costs": plan.costs.source}


def as_text(plan: Plan, proof: Proof, rows: tuple[Smaller, ...]) -> list[str]:
    """The result as lines: flags, memory, proof, and a table of what each smaller setting loses."""
    page, image = plan.shapes.page_bytes(plan.kv_dtype), plan.shapes.image_bytes
    lines = [" ".join(f"{name} {value}" for name, value in flags_of(plan).items()), "",
             f"{plan.shapes.name}: state image {_mib(image)}, page of {PAGE_TOKENS} tokens {_mib(page)}"]
    for tier, parts in memory_of(plan).items():
        lines.append(f"{tier:<7} KV {_mib(parts['kv'])} + images {_mib(parts['images'])} = {_mib(parts['total'])}")
    lines += ["", f"{'sizes':<24}{'forks hot':>12}{'continued hot':>15}{'middle again':>14}{'roots':>7}{'refused':>9}"
              f"{'prefill, s':>12}"]
    named = (Smaller("as above", proof), *rows)
    return lines + [_row(row, proof) for row in named]


def _row(row: Smaller, whole: Proof) -> str:
    found = row.proof
    more = f"{found.prefill_s:.1f}" if found is whole else f"{found.prefill_s - whole.prefill_s:+.1f}"
    return (f"{row.what:<24}{f'{found.forks_hot}/{found.forks}':>12}"
            f"{f'{found.continuations_hot}/{found.continuations}':>15}{found.middle_recomputed:>14,}{found.roots:>7}"
            f"{found.refused:>9}{more:>12}")


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"
