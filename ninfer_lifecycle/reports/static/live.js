// Runs in progress, as the server tells of them: steps, progress, gates so far. Nothing here is a verdict.

import { badge, bytes, codeOf, count, el, foreign, heading, plural, seconds, span, svg, table } from "./dom.js";

let source = null, runs = null, paint = () => {}, broken = false;
const STATES = { running: "running", quiet: "quiet", done: "done", died: "ended early" };

export function listen(onSite) {
  if (source) return;
  source = new EventSource("events");
  source.addEventListener("runs", (event) => { runs = JSON.parse(event.data); broken = false; paint(); });
  source.addEventListener("site", (event) => onSite(JSON.parse(event.data)));
  source.addEventListener("error", () => { broken = true; paint(); });
}

function sparkline(walls) {
  const top = Math.max(...walls, 1), width = 6;
  return svg("svg", { class: "spark", viewBox: `0 0 ${walls.length * width} 32`, width: walls.length * width, height: 32, role: "img", "aria-label": `Walls of the last ${walls.length} forks, the slowest ${seconds(top)}` },
    walls.map((wall, place) => svg("rect", { class: "step", x: place * width, y: 32 - Math.max(1.5, (wall / top) * 32), width: width - 1.5, height: Math.max(1.5, (wall / top) * 32) }, svg("title", {}, seconds(wall)))));
}

function progress(run) {
  const id = `progress-${run.id}`;
  return el("div", { class: "progress" }, el("label", { for: id }, `${count(run.done)} of ${count(run.steps.length)} steps`), el("progress", { id, max: Math.max(1, run.steps.length), value: run.done }),
    el("p", { class: "place" }, run.state === "running" ? ["now: ", foreign(run.steps[run.done] || "coming to its end"), run.eta === null ? "" : `, about ${span(run.eta * 1000)} left`] : run.why ? foreign(run.why) : `last heard of ${span(run.quiet * 1000)} ago`));
}

function gates(run) {
  const state = (gate) => (gate.result === null ? el("span", { class: "badge open-badge" }, "Open") : badge(codeOf(gate.result)));
  const order = (gate) => ({ FAILED: 0, INCONCLUSIVE: 1 }[gate.result] ?? 2);
  const listed = (caption, some) => table(caption, [["Gate", true], ["So far", true], ["Trials"], ["Missed"], ["No sample"]],
    some.map((gate) => [foreign(gate.title), state(gate), `${count(gate.trials)} of ${count(gate.planned)}`, count(gate.misses), count(gate.gaps)]));
  const settled = run.gates.filter((gate) => gate.result !== null).sort((a, b) => order(a) - order(b));
  const open = run.gates.filter((gate) => gate.result === null);
  if (!run.gates.length) return el("p", { class: "absent" }, "It is not known what this run is held to.");
  return [settled.length ? listed("Gates that have settled; restarts, saves and times settle when the run ends", settled) : null,
    open.length ? el("details", {}, el("summary", {}, `${plural(open.length, "gate")} still open`), listed("Gates still open", open)) : null];
}

function steps(run) {
  const marks = { done: "done", failed: "failed", skipped: "skipped" };
  return table("Steps of the plan", [["Step", true], ["State", true], ["Took"]], run.steps.map((name, place) => {
    const ended = run.ended[place];
    return [foreign(name), ended ? marks[ended[0]] : place === run.done && run.state === "running" ? el("strong", {}, "now") : el("span", { class: "place" }, "to come"), ended ? seconds(ended[1]) : ""];
  }));
}

function pools(run) {
  if (!run.pools.length) return null;
  return table("Pools of the engine, newest status document", [["Pool", true], ["Occupied"], ["Capacity"], ["Share"]], run.pools.map(([name, unit, occupied, capacity]) => {
    const shown = unit === "bytes" ? bytes : count;
    return [name, shown(occupied), shown(capacity), capacity ? `${Math.round((occupied / capacity) * 100)}%` : "none"];
  }));
}

function card(run) {
  return el("article", { class: "run", "aria-labelledby": `run-${run.id}` }, el("h2", { id: `run-${run.id}` }, foreign(run.profile), " ", el("span", { class: "place" }, STATES[run.state])), el("p", { class: "place" }, foreign(run.id), `, ${count(run.requests)} requests, ${count(run.unanswered)} without an answer`), progress(run),
    run.forks.length ? el("p", { class: "forks" }, sparkline(run.forks), el("span", { class: "place" }, ` last ${run.forks.length} forks, the newest ${seconds(run.forks[run.forks.length - 1])}`)) : null, gates(run),
    el("details", {}, el("summary", {}, "Pools and steps"), pools(run), steps(run)));
}

// What stays the same of an element when the page is painted anew: its run, and its words without their numbers.
function nameOf(item) {
  const words = item.getAttribute("aria-label") || item.querySelector("summary")?.textContent || item.textContent;
  return `${item.closest("article")?.getAttribute("aria-labelledby")} ${item.tagName} ${words.replace(/\d+/g, "")}`;
}

export async function live() {
  const box = el("div", {});
  const open = new Set();
  paint = () => {
    if (!box.isConnected && box.childNodes.length) return;
    for (const item of box.querySelectorAll("details")) { if (item.open) open.add(nameOf(item)); else open.delete(nameOf(item)); }
    const focus = box.contains(document.activeElement) ? nameOf(document.activeElement) : null;
    box.replaceChildren(broken ? el("p", { class: "absent", role: "status" }, "The server cannot be reached; what is shown may be old. The page tries again by itself.") : "",
      runs === null ? el("p", {}, "Waiting for the server.") : runs.length ? "" : el("p", { class: "absent" }, "No run is in progress. Start one: ", el("code", {}, "ninfer qualify PROFILE"), "."), ...(runs || []).map(card));
    for (const item of box.querySelectorAll("details")) item.open = open.has(nameOf(item));
    if (focus) [...box.querySelectorAll("summary, [tabindex]")].find((item) => nameOf(item) === focus)?.focus();
  };
  paint();
  return { title: "Live", node: el("section", { class: "live" }, heading("Runs in progress"), el("p", { class: "lead" }, "As the runs' own files tell it, unsigned. A verdict comes with the receipt."), box), quiet: true };
}
