// A check or a figure of one profile and lane over its receipts.

import { groupNumber, page, pageCount, site } from "./data.js";
import { age, badge, count, digest, el, foreign, heading, link, plural, table } from "./dom.js";
import { series, UNITS } from "./plot.js";
import { pager } from "./receipts.js";

function pointsOf(data, number, factor) {
  return data.points.map(([ident, finished, sequence, , values]) => {
    const value = values.find(([key]) => key === number);
    return value && { ident, sequence, time: Date.parse(finished), finished, value: value[1] / factor, code: value[2], threshold: value[3] < 0 ? -1 : value[3] / factor };
  }).filter(Boolean);
}

function chooser(data, chosen, profile, lane) {
  return el("p", { class: "field" }, el("label", { for: "series" }, "Check or figure"), el("select", { id: "series", onchange: (event) => {
    location.hash = "#/" + ["trend", profile, lane, event.target.value].map(encodeURIComponent).join("/");
  } }, data.keys.map(([key, label]) => el("option", { value: key, selected: key === chosen }, label))));
}

const rounded = (value) => Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });

export async function trend([profile, lane, wanted], query) {
  const place = await groupNumber(profile, lane);
  if (place === null) {
    return { title: "Not found", node: el("section", {}, heading("No such lane"), el("p", {}, "No verified receipt is of profile ", foreign(profile || ""), ", lane ", foreign(lane || ""), ".")) };
  }
  const info = await site();
  const number = Math.max(0, Number(query.get("page")) || 0);
  const data = await page(`trend-${place}-${number}.json`);
  const found = data.keys.findIndex(([name]) => name === wanted);
  const at = found < 0 ? 0 : found;
  const head = [el("p", { class: "kind" }, "Trend"), heading(foreign(profile)), el("p", { class: "where" }, "lane ", foreign(lane), ` · ${plural(data.total, "receipt")}`)];
  if (!data.keys.length) return { title: "Trend", node: [...head, el("p", { class: "absent" }, "Nothing was measured in these receipts.")] };
  const [key, label, measure] = data.keys[at];
  const [unit, factor] = UNITS[measure];
  const points = pointsOf(data, at, factor);
  const marks = data.marks.map(([time, , file]) => ({ time: Date.parse(time), label: `${time}: ${file}` }));
  const released = info.releases === null ? "No release key was given, so releases are not marked." : data.marks.length ? `${plural(data.marks.length, "release")} ${data.marks.length === 1 ? "stands" : "stand"} on receipts of this lane.` : "No release stands on a receipt of this lane.";
  return { title: `Trend: ${profile}`, node: [...head, el("section", {}, chooser(data, key, profile, lane), el("h2", {}, foreign(label)),
    el("p", { class: "legend" }, el("span", {}, el("span", { class: "key passed-key" }), "passed"), " ", el("span", {}, el("span", { class: "key failed-key" }), "failed"), " ", el("span", {}, el("span", { class: "key open-key" }), "inconclusive"), " ",
      el("span", {}, el("span", { class: "key limit-key" }), "threshold"), " ", el("span", {}, el("span", { class: "key mark-key" }), "release")),
    el("div", { class: "scroll", role: "region", "aria-label": "Plot of the series", tabindex: "0" }, series([...points].reverse(), marks, unit, label)), el("p", {}, released),
    table(`${label}, newest first`, [["Finished", true], ["Number"], ["Result", true], [`Observed, ${unit}`], [`Threshold, ${unit}`], ["Receipt", true]],
      points.slice(0, 50).map((point) => [age(point.finished), count(point.sequence), badge(point.code), rounded(point.value), point.threshold < 0 ? "none" : rounded(point.threshold), link(["receipt", point.ident], digest(point.ident.slice(0, 12)))])),
    points.length > 50 ? el("p", {}, `The table shows the newest 50 of ${count(points.length)} points in the plot.`) : null,
    pager(number, pageCount(data.total, info.trendSize), (to) => "#/" + ["trend", profile, lane, key].map(encodeURIComponent).join("/") + `?page=${to}`))] };
}
