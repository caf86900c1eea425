// One receipt: verdict first, what did not pass next, then figures, checks and digests.

import { groupNumber, receipt as read, site } from "./data.js";
import { age, badge, codeOf, count, digest, el, foreign, heading, link, RESULTS, seconds, table, validity } from "./dom.js";

const SENTENCES = ["Everything that was claimed was shown.", "Something that was claimed is not so.", "Not everything could be compared; this is no pass."];

export function missing(ident) {
  return { title: "Not found", node: el("section", {}, heading("No such receipt"),
    el("p", {}, "No verified receipt here begins with ", digest(ident.slice(0, 64)), ". It may have been removed, or refused: see ", link(["refused"], "refused files"), ".")) };
}

function failures(checks) {
  const open = checks.filter((check) => check.result !== "PASSED");
  if (!open.length) return null;
  return el("section", {}, el("h2", {}, "What did not pass"), el("ol", { class: "failures" }, open.map((check) => el("li", { class: check.result.toLowerCase() },
    el("h3", {}, badge(codeOf(check.result)), " ", foreign(check.name), " ", el("span", { class: "place" }, check.place)),
    el("p", { class: "reason" }, foreign(check.reason)),
    el("p", { class: "asked" }, `Asked for: ${check.asked}. Seen at worst: ${check.seen}. ${check.counts}.`)))));
}

export function wallsTable(walls) {
  return table("Wall times by template and life of the engine", [["Template, tokens"], ["Epoch"], ["Cold"], ["Forks"], ["Median"], ["Slowest"], ["First"]],
    walls.map(([tokens, epoch, cold, median, slowest, first, forks]) => [count(tokens), epoch, seconds(cold), count(forks), seconds(median), seconds(slowest), seconds(first)]));
}

export function checksTable(checks) {
  return table("Every check and control, what did not pass first", [["Check", true], ["Result", true], ["Asked for"], ["Seen, at worst"], ["Counts and bound", true]],
    checks.map((check) => [[foreign(check.name), check.place ? el("span", { class: "place" }, check.place) : null], badge(codeOf(check.result)), check.asked, check.seen,
      [check.counts, check.bound ? el("span", { class: "place" }, check.bound) : null]]), { class: "checks" });
}

function digests(found) {
  const rows = [["File", foreign(found.file)], ["Payload, SHA-256", digest(found.payload)], ["Subject: lock file", digest(found.subject)], ["Policy", digest(found.policy)],
    ...found.configuration.map(([name, sha]) => [foreign(name), digest(sha)]), ...found.signers.map((key) => ["Signed by key", digest(key)]),
    ["Ran on", [foreign(found.host), ": ", foreign(found.hardware)]], ["Run", `${found.started} to ${found.finished}, ${count(found.requests)} requests, ${count(found.unanswered)} without an answer`]];
  return el("dl", { class: "digests" }, rows.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

export async function receipt([ident]) {
  const found = await read(ident);
  if (!found) return missing(ident);
  const code = codeOf(found.result);
  const passed = found.checks.filter((check) => check.result === "PASSED").length;
  const info = await site();
  const place = await groupNumber(found.profile, found.lane);
  const whole = place !== null && place < info.reports ? await newest(place, info) === found.id : false;
  const actions = [link(["trend", found.profile, found.lane], "Trend of this lane"),
    found.previous ? link(["compare", found.previous.slice(0, 24), found.id], "Compare with the one before") : null,
    whole ? el("a", { href: `reports/${found.id}.html` }, "Whole report") : null].filter(Boolean);
  return { title: `${RESULTS[code]}: ${found.profile}`, node: [
    el("p", { class: "kind" }, "Receipt ", digest(found.id)), heading(foreign(found.profile)),
    el("p", { class: "where" }, "lane ", foreign(found.lane), ` · number ${count(found.sequence)} in its chain · finished `, age(found.finished)),
    el("section", { class: `verdict ${found.result.toLowerCase()}` }, el("h2", {}, el("span", { class: "word" }, RESULTS[code])),
      el("p", {}, `${SENTENCES[code]} ${count(passed)} of ${count(found.checks.length)} checks and controls passed.`), el("p", { class: "validity" }, validity(found.validUntil), `, until ${found.validUntil}`)),
    el("ul", { class: "actions" }, actions.map((action) => el("li", {}, action))),
    found.figures.length ? el("dl", { class: "figures" }, found.figures.map(([value, name, context]) => el("div", {}, el("dt", {}, name), el("dd", { class: "number" }, value), el("dd", { class: "context" }, context)))) : null,
    failures(found.checks),
    el("section", {}, el("h2", {}, "Forks beside cold starts"), found.walls.length ? wallsTable(found.walls) : el("p", { class: "absent" }, "The evidence holds no timed fork."),
      found.bounds.length ? el("ul", { class: "bounds" }, found.bounds.map(([sizes, said]) => el("li", {}, el("strong", {}, `${sizes}. `), said))) : null, el("p", {}, found.costs)),
    el("section", {}, el("h2", {}, "Every check and control"), checksTable(found.checks)),
    found.limitations.length ? el("section", {}, el("h2", {}, "What this does not show"), el("ul", {}, found.limitations.map((text) => el("li", {}, foreign(text))))) : null,
    el("section", {}, el("h2", {}, "Check it yourself"), el("p", {}, "With the qualifier's public key from a source other than this page or the receipt:"), el("pre", { tabindex: "0", "aria-label": "Command to verify the receipt" }, el("code", {}, found.verify))),
    el("section", {}, el("h2", {}, "Digests, key and place"), digests(found)),
  ] };
}

async function newest(place, info) {
  const { page } = await import("./data.js");
  const groups = await page(`groups-${Math.floor(place / info.groupSize)}.json`);
  return groups[place % info.groupSize][3];
}
