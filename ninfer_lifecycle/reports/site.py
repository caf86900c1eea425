"""The static site over a folder of receipts: one page that reads paged JSON files. Opens from any web server.

    index.html, *.js, style.css       the page
    data/current.json                 what there is, and which build's files hold it; replaced last, in one step
    data/<build>/groups-N.json        profile and lane with their newest receipt, newest first
                 list-N.json          rows of receipts, newest first
                 find-X.json          position of each receipt in the list, by the first digit of its id
                 detail-N.json        everything about a few receipts, in the order of the list
                 trend-G-N.json       points of every check of group G, newest first
                 refused-N.json       files that did not verify, with the reason
    reports/ID.html                   the whole report of the newest receipt of each of the newest groups

A reader that holds an older current.json finds the files of its build until the next but one is built.
"""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib import resources
from pathlib import Path
from typing import Any

from ninfer_lifecycle.errors import UsageError
from ninfer_lifecycle.receipts.store import replacing, write_atomic
from ninfer_lifecycle.receipts.times import format_time
from ninfer_lifecycle.reports.details import CODES, Series
from ninfer_lifecycle.reports.gather import Gathered, Gatherer, Kept, Mark
from ninfer_lifecycle.reports.html import made_by, render, style

LIST_SIZE, DETAIL_SIZE, TREND_SIZE, GROUP_SIZE, REFUSED_SIZE = 200, 16, 300, 400, 400
MAX_REPORTS = 300
"""Groups, newest first, whose newest receipt gets its whole report as a file of its own."""
PAGES = ("index.html", "app.js", "dom.js", "data.js", "overview.js", "receipts.js", "receipt.js", "compare.js",
         "trend.js", "plot.js", "live.js")
_OWN = ".ninfer-site"


@dataclass(frozen=True, slots=True)
class Group:
    """A profile and lane: its receipts, newest first."""

    profile: str
    lane: str
    kept: tuple[Kept, ...]


@dataclass(frozen=True, slots=True)
class Built:
    """What a build wrote."""

    receipts: int
    groups: int
    refused: int
    reports: int
    version: str


def build_site(gatherer: Gatherer, out: Path, now: datetime, *, live: bool = False,
               say: Callable[[str], None] = lambda line: None) -> Built:
    """Gather and write the site to `out`. Effects: makes it; replaces its own files there and removes older builds.

    live: the page shows runs in progress too (a server gives them). Raises UsageError for a folder that holds
    something else.
    """
    claim(out)
    gathered = gatherer.gather(now)
    say(f"{len(gathered.kept)} receipts verified, {len(gathered.refused)} refused")
    groups = groups_of(gathered.kept)
    folder = out / "data" / gathered.version
    if not (folder / "done").is_file():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _write_pages(gatherer, gathered, groups, folder)
        (folder / "done").touch()
    reports = _write_reports(gatherer, groups[:MAX_REPORTS], out / "reports", now)
    for name in PAGES:
        write_atomic(out / name, _static(name))
    write_atomic(out / "style.css", style().encode() + _static("site.css"))
    before = _current(out)
    write_atomic(out / "data" / "current.json", _json(_overview(gathered, groups, now, live=live)))
    _remove_others(out / "data", {gathered.version, before})
    return Built(len(gathered.kept), len(groups), len(gathered.refused), reports, gathered.version)


def claim(out: Path) -> None:
    """Make the folder, or know it again. Raises UsageError: a folder of something else is never written to."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not (out / _OWN).exists() and any(out.iterdir()):
            raise UsageError(f"{out} holds something that is not a site of ninfer", "Give an empty or a new folder.")
        (out / _OWN).touch()
        (out / "data").mkdir(exist_ok=True)
        (out / "reports").mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}", "Give a folder that can be.") from None


def groups_of(kept: Sequence[Kept]) -> tuple[Group, ...]:
    """Receipts by profile and lane; the group with the newest receipt first."""
    found: dict[tuple[str, str], list[Kept]] = {}
    for item in kept:
        found.setdefault((item.row.profile, item.row.lane), []).append(item)
    return tuple(Group(profile, lane, tuple(items)) for (profile, lane), items in found.items())


def _overview(gathered: Gathered, groups: Sequence[Group], now: datetime, *, live: bool) -> dict[str, Any]:
    return {
        "schemaVersion": 1, "builtOn": format_time(now), "base": f"data/{gathered.version}/", "live": live,
        "receipts": len(gathered.kept), "groups": len(groups), "refused": len(gathered.refused),
        "listSize": LIST_SIZE, "detailSize": DETAIL_SIZE, "trendSize": TREND_SIZE, "groupSize": GROUP_SIZE,
        "refusedSize": REFUSED_SIZE, "reports": min(MAX_REPORTS, len(groups)),
        "releases": None if gathered.marks is None else len(gathered.marks),
    }


def _write_pages(gatherer: Gatherer, gathered: Gathered, groups: Sequence[Group], folder: Path) -> None:
    number = {(group.profile, group.lane): place for place, group in enumerate(groups)}
    _paged(folder, "groups", GROUP_SIZE, [_group(group) for group in groups])
    _paged(folder, "list", LIST_SIZE, [_row(item, number) for item in gathered.kept])
    _paged(folder, "refused", REFUSED_SIZE, [[item.file, item.step, item.detail, item.advice]
                                             for item in gathered.refused])
    shards: dict[str, dict[str, int]] = {digit: {} for digit in "0123456789abcdef"}
    for place, item in enumerate(gathered.kept):
        shards[item.row.ident[0]][item.row.ident] = place
    for digit, found in shards.items():
        (folder / f"find-{digit}.json").write_bytes(_json(found))
    for page, start in enumerate(range(0, len(gathered.kept), DETAIL_SIZE)):
        texts = [gatherer.detail(item) for item in gathered.kept[start : start + DETAIL_SIZE]]
        (folder / f"detail-{page}.json").write_bytes(b"[" + b",\n".join(texts) + b"]\n")
    for place, group in enumerate(groups):
        _write_trend(folder, place, group, gathered.marks or ())


def _group(group: Group) -> list[Any]:
    row = group.kept[0].row
    return [group.profile, group.lane, len(group.kept), row.ident, CODES[row.result], row.finished, row.valid_until,
            row.sequence, row.finding]


def _row(item: Kept, number: dict[tuple[str, str], int]) -> list[Any]:
    row = item.row
    return [row.ident, row.profile, row.lane, row.sequence, CODES[row.result], row.finished, row.valid_until,
            row.subject[:24], row.finding, row.file, number[row.profile, row.lane]]


def _write_trend(folder: Path, place: int, group: Group, marks: Sequence[Mark]) -> None:
    """Points refer to their series by number; each page has the series that it needs."""
    payloads = {item.row.payload: item.row.ident for item in group.kept}
    marked = [[mark.decided_on, payloads[payload], mark.file]
              for mark in marks for payload in sorted(mark.receipts) if payload in payloads]
    for page, start in enumerate(range(0, len(group.kept), TREND_SIZE)):
        keys: dict[Series, int] = {}
        points = []
        for item in group.kept[start : start + TREND_SIZE]:
            row = item.row
            values = [[keys.setdefault(point.series, len(keys)), point.value, point.code, point.threshold]
                      for point in row.points]
            points.append([row.ident, row.finished, row.sequence, CODES[row.result], values])
        named = [[series.key, series.label, series.unit] for series in keys]
        value = {"profile": group.profile, "lane": group.lane, "total": len(group.kept), "keys": named,
                 "points": points, "marks": marked}
        (folder / f"trend-{place}-{page}.json").write_bytes(_json(value))


def _write_reports(gatherer: Gatherer, groups: Sequence[Group], folder: Path, now: datetime) -> int:
    """Reports are of one payload for ever, but for their age: those that this version of the tool made stay."""
    mark = folder / "made-by.txt"
    if not mark.is_file() or mark.read_text(encoding="utf-8") != made_by():
        shutil.rmtree(folder)
        folder.mkdir()
        mark.write_text(made_by(), encoding="utf-8")
    wanted = {f"{group.kept[0].row.ident}.html": group.kept[0] for group in groups}
    for path in folder.glob("*.html"):
        if path.name not in wanted:
            path.unlink()
    for name, item in wanted.items():
        if not (folder / name).is_file():
            page = render(gatherer.verified(item, now).facts, now=now, receipt_name=item.path.name)
            with replacing(folder / name) as file:
                file.write(page.encode("utf-8"))
    return len(wanted)


def _paged(folder: Path, name: str, size: int, rows: Sequence[Any]) -> None:
    for page, chunk in enumerate(_chunks(rows, size)):
        (folder / f"{name}-{page}.json").write_bytes(_json(chunk))


def _chunks(rows: Sequence[Any], size: int) -> Iterator[Sequence[Any]]:
    """At least one page, so that there is always a first."""
    yield rows[:size]
    for start in range(size, len(rows), size):
        yield rows[start : start + size]


def _current(out: Path) -> str | None:
    try:
        return str(json.loads((out / "data" / "current.json").read_bytes())["base"]).split("/")[1]
    except (OSError, ValueError, KeyError, IndexError, TypeError):
        return None


def _remove_others(data: Path, keep: set[str | None]) -> None:
    for path in data.iterdir():
        if path.is_dir() and path.name not in keep:
            shutil.rmtree(path)


def _static(name: str) -> bytes:
    return resources.files("ninfer_lifecycle.reports").joinpath("static", name).read_bytes()


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"
