// Lists: all receipts, those that a search finds, and files that were refused.

import { page, pageCount, site } from "./data.js";
import { age, badge, count, digest, el, foreign, heading, link, plural, RESULTS, table, validity } from "./dom.js";

const MOST_FOUND = 200;
const HEAD = [["Profile and lane", true], ["Number"], ["Result", true], ["Finished", true], ["Validity", true], ["First finding", true], ["Receipt", true]];

export function pager(number, pages, address) {
  if (pages < 2) return null;
  const step = (to, name) => (to >= 0 && to < pages ? el("a", { href: address(to) }, name) : el("span", { class: "place" }, name));
  return el("nav", { class: "pager", "aria-label": "Pages" }, step(number - 1, "Newer"), el("span", {}, `page ${count(number + 1)} of ${count(pages)}`), step(number + 1, "Older"));
}

function line([ident, profile, lane, sequence, code, finished, validUntil, , finding]) {
  return [[foreign(profile), el("span", { class: "place" }, foreign(lane))], count(sequence), badge(code), age(finished), validity(validUntil),
    finding ? foreign(finding) : el("span", { class: "place" }, "none"), link(["receipt", ident], digest(ident.slice(0, 12)))];
}

const listed = (caption, rows) => table(caption, HEAD, rows.map(line));

function matcher(words) {
  const parts = words.toLowerCase().split(/\s+/).filter(Boolean);
  return (row) => {
    const text = [row[1], row[2], RESULTS[row[4]], row[8], row[9], row[5]].join(" ").toLowerCase();
    return parts.every((part) => text.includes(part) || row[0].startsWith(part.slice(0, row[0].length)) || row[7].startsWith(part.slice(0, row[7].length)));
  };
}

async function search(words) {
  const info = await site();
  const pages = pageCount(info.receipts, info.listSize);
  const matches = matcher(words);
  const found = [];
  let looked = 0;
  for (let start = 0; start < pages && found.length < MOST_FOUND; start += 8) {
    const some = await Promise.all(Array.from({ length: Math.min(8, pages - start) }, (_, place) => page(`list-${start + place}.json`)));
    for (const rows of some) { looked += rows.length; found.push(...rows.filter(matches)); }
  }
  const more = looked < info.receipts ? `; the search stopped after ${count(looked)} of ${count(info.receipts)} receipts` : "";
  return el("section", {}, heading("Search"), el("p", { class: "lead" }, `${count(Math.min(found.length, MOST_FOUND))} found for “`, foreign(words), `”, newest first${more}.`),
    found.length ? listed("Receipts that match", found.slice(0, MOST_FOUND)) : el("p", {}, "Words may be parts of a profile, a lane, a result, a check or a file, or the beginning of a digest."));
}

export async function receipts(_, query) {
  const words = (query.get("q") || "").trim();
  if (words) return { title: `Search: ${words}`, node: await search(words) };
  const info = await site();
  const pages = pageCount(info.receipts, info.listSize);
  const number = Math.max(0, Math.min(Number(query.get("page")) || 0, pages - 1));
  const rows = await page(`list-${number}.json`);
  return { title: "Receipts", node: el("section", {}, heading("Receipts"), el("p", { class: "lead" }, `${plural(info.receipts, "verified receipt")}, newest first.`),
    rows.length ? listed("Verified receipts", rows) : null, pager(number, pages, (to) => `#/receipts?page=${to}`)) };
}

export async function refused(_, query) {
  const info = await site();
  const pages = pageCount(info.refused, info.refusedSize);
  const number = Math.max(0, Math.min(Number(query.get("page")) || 0, pages - 1));
  const rows = await page(`refused-${number}.json`);
  return { title: "Refused files", node: el("section", {}, heading("Refused files"),
    el("p", { class: "lead" }, info.refused ? `${plural(info.refused, "file")} did not verify. Nothing else of ${info.refused === 1 ? "it" : "them"} is shown.` : "Every receipt in the folder verified."),
    rows.length ? table("Files that were refused", [["File", true], ["Step", true], ["What it found", true], ["What to do", true]], rows.map((row) => row.map(foreign))) : null,
    pager(number, pages, (to) => `#/refused?page=${to}`)) };
}
