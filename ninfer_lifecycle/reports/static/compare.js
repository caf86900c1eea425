// Two receipts side by side: what changed first.

import { receipt as read } from "./data.js";
import { age, badge, codeOf, count, digest, el, foreign, heading, link, seconds, table } from "./dom.js";
import { missing } from "./receipt.js";

function form(before, after) {
  const field = (id, name, value) => el("p", { class: "field" }, el("label", { for: id }, name), el("input", { id, name: id, value, spellcheck: "false", autocomplete: "off" }));
  return el("form", { class: "choose", onsubmit: (event) => {
    event.preventDefault();
    const of = (id) => event.target.elements[id].value.trim().toLowerCase();
    location.hash = `#/compare/${encodeURIComponent(of("before"))}/${encodeURIComponent(of("after"))}`;
  } }, field("before", "Earlier receipt, beginning of its payload digest", before), field("after", "Later receipt", after), el("button", { type: "submit" }, "Compare"));
}

const ratio = (before, after) => (before && after ? `${(after / before).toFixed(after / before < 10 ? 2 : 1)}×` : "none");

function walls(before, after) {
  if (before.hardware !== after.hardware || before.host !== after.host) {
    return el("p", { class: "absent" }, "They ran on different hosts or hardware, so their times are not compared.");
  }
  const place = (wall) => `${wall[0]}/${wall[1]}`;
  const old = new Map(before.walls.map((wall) => [place(wall), wall]));
  const both = after.walls.filter((wall) => old.has(place(wall)));
  if (!both.length) return el("p", { class: "absent" }, "They have no template and epoch in common.");
  return table("Wall times: earlier, later, and later over earlier", [["Template, tokens"], ["Epoch"], ["Cold"], [""], [""], ["Median fork"], [""], [""], ["Slowest fork"], [""], [""]].map(([name], at) => [name || ["", "", "", "later", "ratio", "", "later", "ratio", "", "later", "ratio"][at]]),
    both.map((wall) => [count(wall[0]), wall[1], ...[2, 3, 4].flatMap((at) => [seconds(old.get(place(wall))[at]), seconds(wall[at]), ratio(old.get(place(wall))[at], wall[at])])]));
}

function checks(before, after) {
  const old = new Map(before.checks.map((check) => [check.key, check]));
  const now = new Map(after.checks.map((check) => [check.key, check]));
  const keys = [...new Set([...now.keys(), ...old.keys()])];
  const side = (check) => (check ? [badge(codeOf(check.result)), el("span", { class: "place" }, check.seen)] : el("span", { class: "place" }, "not made"));
  const rank = (key) => { const [a, b] = [old.get(key), now.get(key)]; return !a || !b || a.result !== b.result ? 0 : a.seen !== b.seen || a.asked !== b.asked ? 1 : 2; };
  const changed = keys.filter((key) => rank(key) < 2).sort((a, b) => rank(a) - rank(b));
  const same = keys.length - changed.length;
  const rows = changed.map((key) => { const check = now.get(key) || old.get(key); return [[foreign(check.name), check.place ? el("span", { class: "place" }, check.place) : null], side(old.get(key)), side(now.get(key)), check.asked]; });
  return [rows.length ? table("Checks that differ, other results first", [["Check", true], ["Earlier", true], ["Later", true], ["Asked for"]], rows) : null, el("p", {}, `${count(same)} of ${count(keys.length)} checks are alike in result and observation.`)];
}

function parts(before, after) {
  const list = (found) => [["lock file", found.subject], ["policy", found.policy], ...found.configuration];
  const old = new Map(list(before));
  const rows = list(after).filter(([name, sha]) => old.get(name) !== sha).map(([name, sha]) => [foreign(name), old.has(name) ? digest(old.get(name).slice(0, 16)) : "not named", digest(sha.slice(0, 16))]);
  return rows.length ? table("Parts of the configuration that differ, by digest", [["Part", true], ["Earlier", true], ["Later", true]], rows) : el("p", {}, "Lock file, policy and every named part are the same.");
}

export async function compare([first = "", second = ""]) {
  if (!first || !second) {
    return { title: "Compare", node: el("section", {}, heading("Compare two receipts"), el("p", { class: "lead" }, "Give the beginning of each payload digest, as the lists show it. A receipt's own page offers the one before it."), form(first, second)) };
  }
  const both = await Promise.all([read(first), read(second)]);
  if (!both[0] || !both[1]) return missing(both[0] ? second : first);
  const [before, after] = both.sort((a, b) => Date.parse(a.finished) - Date.parse(b.finished) || a.sequence - b.sequence);
  const card = (name, found) => el("div", { class: "side" }, el("h2", {}, name), el("p", {}, badge(codeOf(found.result)), " ", foreign(found.profile), ", lane ", foreign(found.lane), `, number ${count(found.sequence)}, finished `, age(found.finished)), el("p", {}, link(["receipt", found.id], digest(found.id))));
  return { title: "Compare", node: [heading("Compare two receipts"), el("div", { class: "sides" }, card("Earlier", before), card("Later", after)),
    el("section", {}, el("h2", {}, "Checks"), checks(before, after)), el("section", {}, el("h2", {}, "Wall times"), walls(before, after)),
    el("section", {}, el("h2", {}, "Configuration"), parts(before, after)), el("section", {}, el("h2", {}, "Other receipts"), form(before.id, after.id))] };
}
