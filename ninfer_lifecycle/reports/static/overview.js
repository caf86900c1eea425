// Profiles by lanes: the verdict of the newest receipt of each, and how old it is.

import { page, pageCount, site } from "./data.js";
import { age, badge, count, el, expired, foreign, heading, link, plural, table, validity } from "./dom.js";
import { pager } from "./receipts.js";

const MOST_LANES = 6;

function cell(group) {
  if (!group) return el("span", { class: "place" }, "none");
  const [profile, lane, total, ident, code, finished, validUntil, , finding] = group;
  return [
    link(["receipt", ident], badge(code)), " ", age(finished),
    el("span", { class: "place" }, validity(validUntil), ", ", link(["trend", profile, lane], `${count(total)} in all`)),
    finding ? el("span", { class: "place" }, foreign(finding)) : null,
  ];
}

function summary(groups, info) {
  const holding = groups.filter((group) => group[4] === 0 && !expired(group[6])).length;
  const failed = groups.filter((group) => group[4] === 1).length;
  const open = groups.filter((group) => group[4] === 2).length;
  const old = groups.filter((group) => group[4] === 0 && expired(group[6])).length;
  const parts = [failed && `${count(failed)} failed`, open && `${count(open)} inconclusive`, old && `${count(old)} passed once and expired`].filter(Boolean);
  const shown = info.groups > groups.length ? ` of the newest ${count(groups.length)}` : ` of ${count(groups.length)}`;
  return el("p", { class: "lead" }, `${count(holding)}${shown} lanes hold`, parts.length ? `; ${parts.join(", ")}.` : ".",
    ` ${plural(info.receipts, "receipt")} verified`, info.refused ? [", ", link(["refused"], `${plural(info.refused, "file")} refused`)] : "", ".");
}

function matrix(groups) {
  const lanes = [...new Set(groups.map((group) => group[1]))].sort();
  const profiles = [...new Set(groups.map((group) => group[0]))];
  const at = new Map(groups.map((group) => [JSON.stringify([group[0], group[1]]), group]));
  if (lanes.length > MOST_LANES) {
    return table("Newest receipt of each profile and lane", [["Profile", true], ["Lane", true], ["Newest receipt", true]],
      groups.map((group) => [foreign(group[0]), foreign(group[1]), cell(group)]), { class: "matrix" });
  }
  return table("Newest receipt of each profile and lane", [["Profile", true], ...lanes.map((lane) => [foreign(lane), true])],
    profiles.map((profile) => [foreign(profile), ...lanes.map((lane) => cell(at.get(JSON.stringify([profile, lane]))))]), { class: "matrix" });
}

export async function overview(_, query) {
  const info = await site();
  const number = Math.min(Number(query.get("page")) || 0, pageCount(info.groups, info.groupSize) - 1);
  const groups = await page(`groups-${number}.json`);
  if (!info.receipts) {
    return { title: "Overview", node: el("section", {}, heading("No receipts yet"),
      el("p", {}, "The folder holds no receipt that verifies. Make one: ", el("code", {}, "ninfer qualify PROFILE"), "."),
      info.refused ? el("p", {}, link(["refused"], `${plural(info.refused, "file")} refused`), ".") : null) };
  }
  return { title: "Overview", node: el("section", {}, heading("Overview"), summary(groups, info), matrix(groups),
    pager(number, pageCount(info.groups, info.groupSize), (to) => `#/?page=${to}`)) };
}
