"""The static site at scale: `python -m benchmarks.site_bench [COUNT] [DIR]` (default 10,000 receipts).

Signs COUNT receipts in chains of fifty (two templates, two lives of the engine, four forks each: 24 requests and 20
checks), builds the site over them in one process pinned to one core, serves it on loopback and times the first page:
until the overview's table stands in a headless Chromium where there is one, and the bytes that it takes either way.
"""

import dataclasses
import functools
import http.server
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from benchmarks.receipts_bench import write_plain
from ninfer_lifecycle.evidence import EpochEvidence, RequestEvidence, Step
from ninfer_lifecycle.gates.tally import Evidence
from ninfer_lifecycle.gates.thresholds import PlanSummary, QualificationPolicy, Thresholds
from ninfer_lifecycle.receipts.build import ChainHead, ReceiptInputs, build_receipt
from ninfer_lifecycle.receipts.keys import FileSigner
from ninfer_lifecycle.receipts.statement import ConfigurationPart, Digest, Environment, Qualifier
from ninfer_lifecycle.receipts.trust import Role, RoleTrust, trust_keys
from ninfer_lifecycle.reports.gather import Gatherer
from ninfer_lifecycle.reports.site import build_site

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PLAN = PlanSummary(template_tokens=(28405, 57853), epochs=2, forks=4, controls_never_seen=1, controls_exact_repeat=1)
CHAIN, LANES = 50, 4


def answer(
    step: Step, order: int, tokens: int, epoch: int, reused: int, prompt: int, **more: object
) -> RequestEvidence:
    """An honest answer."""
    computed = prompt - reused
    return RequestEvidence.model_validate({
        "request_id": f"{order:064x}", "epoch": epoch, "order": order, "step": step, "template_tokens": tokens,
        "http_status": 200, "reply_status": "completed", "response_id": f"resp_{order}", "prompt_tokens": prompt,
        "cached_tokens": reused, "reused_tokens": reused, "computed_tokens": computed,
        "counter_computed_tokens": computed, "server_instance_id": f"life-{epoch}", "path": "anchor",
        "wall_us": 20_000 + 200 * computed, "engine_ttft_us": 9_000 + 200 * computed,
        "predicted_now_us": 8_000 + 190 * computed} | more)


@functools.cache
def evidence() -> Evidence:
    """Bases, forks before and after a restart, resumes, both controls."""
    orders = iter(range(1, 1000))
    found = []
    for tokens in PLAN.template_tokens:
        base = answer(Step.BASE, next(orders), tokens, 0, 0, tokens + 8)
        found.append(base)
        for epoch in range(2):
            found += [answer(Step.FORK, next(orders), tokens, epoch, tokens + 16, tokens + 56, sibling=n,
                             parent_response_id=base.response_id) for n in range(4)]
        found.append(answer(Step.RESUME, next(orders), tokens, 1, tokens + 16, tokens + 40))
    found.append(answer(Step.CONTROL_NEVER_SEEN, next(orders), 900, 0, 0, 900))
    found.append(answer(Step.CONTROL_EXACT_REPEAT, next(orders), 900, 0, 899, 900))
    lives = tuple(EpochEvidence(epoch=n, server_instance_id=f"life-{n}", started_at="2026-01-01T00:00:00Z", exit_code=0,
                                oom_killed=False, prefill_counter_before=3, prefill_counter_after=90_000,
                                identity_sha256="ab" * 32) for n in range(2))
    return Evidence(tuple(found), epochs=lives)


def varied(seed: int) -> Evidence:
    """The evidence with other walls, and in one run of thirty a fork that re-prefilled."""
    chance = random.Random(seed)
    cold = chance.randrange(30) == 0
    requests = []
    for record in evidence().requests:
        change: dict[str, object] = {"wall_us": round((record.wall_us or 0) * chance.uniform(0.9, 1.3))}
        if cold and record.step is Step.FORK and record.sibling == 2 and record.epoch == 1:
            change |= {"cached_tokens": 0, "reused_tokens": 0, "computed_tokens": record.prompt_tokens,
                       "counter_computed_tokens": record.prompt_tokens}
        requests.append(record.model_copy(update=change))
    return dataclasses.replace(evidence(), requests=tuple(requests))


def sign(folder: Path, count: int, signer: FileSigner) -> None:
    """Chains of CHAIN receipts; profiles have LANES lanes."""
    head: ChainHead | None = None
    for number in range(count):
        group, place = divmod(number, CHAIN)
        finished = NOW + timedelta(hours=place * 12, minutes=group)
        made = build_receipt(ReceiptInputs(
            profile=f"profile-{group // LANES}", lane=f"lane-{group % LANES}", lock=f"lock {group}".encode(),
            qualifier=Qualifier(id="bench", version="0", source_digest=Digest(sha256="0" * 64)),
            policy=QualificationPolicy(plan=PLAN, thresholds=Thresholds()),
            configuration=(ConfigurationPart(name="model", digest=Digest(sha256="1" * 64)),),
            environment=Environment(host="process", architecture="x86_64"), evidence=varied(number),
            started_on=finished - timedelta(minutes=1), finished_on=finished,
            valid_until=finished + timedelta(days=3650), head=head if place else None), signer)
        head = ChainHead(made.sequence, made.payload_sha256)
        write_plain(folder, made)


def build(receipts: Path, site: Path, trust: RoleTrust) -> None:
    """The build, on one core, with its wall and its processor time."""
    everywhere = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(everywhere)})
    gatherer = Gatherer(receipts, trust)
    for name in ("build", "build again, nothing new"):
        wall, own = time.perf_counter(), time.process_time()
        built = build_site(gatherer, site, NOW + timedelta(days=60))
        print(f"{name:<34} {time.perf_counter() - wall:8.2f} s wall {time.process_time() - own:8.2f} s of one core   "
              f"{built.receipts} receipts, {built.groups} lanes, {built.reports} whole reports")
    os.sched_setaffinity(0, everywhere)
    files = [path for path in site.rglob("*") if path.is_file()]
    print(f"{'site on disk':<34} {sum(path.stat().st_size for path in files) / 2**20:8.1f} MiB in {len(files)} files")


class Counting(http.server.SimpleHTTPRequestHandler):
    """Serves the folder and counts bytes of bodies."""

    sent = 0

    def log_message(self, format: str, *arguments: object) -> None:  # noqa: A002  the name that the base class has
        """No log."""

    def copyfile(self, source: object, outputfile: object) -> None:
        data = source.read()  # type: ignore[attr-defined]  a file
        Counting.sent += len(data)
        outputfile.write(data)  # type: ignore[attr-defined]  a file


def first_page(site: Path) -> None:
    """From an empty cache to the overview's table; then a receipt by its address, and a search over everything."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Counting, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}/"
    current = json.loads((site / "data/current.json").read_text())
    pages = -(-current["receipts"] // current["listSize"])
    oldest = json.loads((site / current["base"] / f"list-{pages - 1}.json").read_text())[-1][0]
    for name, seconds, size in _loads(url, oldest):
        print(f"{name:<34} {seconds:8.3f} s, {size / 2**10:8.1f} KiB")
    server.shutdown()


def _loads(url: str, ident: str) -> Iterator[tuple[str, float, int]]:
    path = shutil.which("chromium")
    if path is None:
        print("no chromium: first page not timed")
        return
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  only where there is a browser

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        browser.new_page().goto("about:blank")
        for name, address, ready in (("first page", "", "table.matrix"), ("a receipt by its address",
                                     f"#/receipt/{ident}", ".verdict"),
                                     ("search for the oldest of all", f"#/receipts?q={ident}", "tbody tr")):
            for _ in range(3):
                context = browser.new_context()
                page = context.new_page()
                before, start = Counting.sent, time.perf_counter()
                page.goto(url + address)
                page.wait_for_selector(ready)
                yield name, time.perf_counter() - start, Counting.sent - before
                context.close()
        browser.close()


def main(arguments: list[str]) -> None:
    """Sign, build, load."""
    count = int(arguments[0]) if arguments else 10_000
    with tempfile.TemporaryDirectory(dir=arguments[1] if len(arguments) > 1 else None) as work:
        receipts, site = Path(work) / "receipts", Path(work) / "site"
        receipts.mkdir()
        signer = FileSigner(Ed25519PrivateKey.generate())
        start = time.perf_counter()
        sign(receipts, count, signer)
        print(f"{'sign':<34} {time.perf_counter() - start:8.2f} s wall, {count} receipts")
        build(receipts, site, trust_keys(Role.QUALIFIER, signer.public_key))
        first_page(site)


if __name__ == "__main__":
    main(sys.argv[1:])
