// Which view the address asks for. Every view gives a title and nodes; the heading gets the focus when the view changes.

import { site } from "./data.js";
import { compare } from "./compare.js";
import { count, el, heading } from "./dom.js";
import { listen, live } from "./live.js";
import { overview } from "./overview.js";
import { receipt } from "./receipt.js";
import { receipts, refused } from "./receipts.js";
import { trend } from "./trend.js";

const VIEWS = { "": overview, receipts, receipt, compare, trend, refused, live };
const main = document.getElementById("main");
let turn = 0;

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  let parts;
  try {
    parts = path.split("/").map(decodeURIComponent);
  } catch {
    parts = ["unreadable"];
  }
  return { name: parts[0], parameters: parts.slice(1), query: new URLSearchParams(query) };
}

function failure(error) {
  const hint = location.protocol === "file:" ? "Browsers do not let a page read files beside it. Serve the folder: ninfer dashboard serve, or python -m http.server." : "Load the page again; if that does not help, build the site again.";
  return { title: "Error", node: el("section", { role: "alert" }, heading("This could not be shown"), el("p", {}, String(error.message)), el("p", {}, hint)) };
}

async function show(focus) {
  const mine = (turn += 1);
  const { name, parameters, query } = address();
  const view = VIEWS[name] || (async () => ({ title: "Not found", node: el("section", {}, heading("No such page"), el("p", {}, el("a", { href: "#/" }, "Go to the overview"), ".")) }));
  main.setAttribute("aria-busy", "true");
  const made = await view(parameters, query).catch(failure);
  if (mine !== turn) return;
  main.replaceChildren(...[made.node].flat().filter(Boolean));
  main.setAttribute("aria-live", made.quiet ? "off" : "polite");
  main.setAttribute("aria-busy", "false");
  document.title = `${made.title} - Qualifications`;
  for (const item of document.querySelectorAll("nav [data-view]")) {
    if (item.dataset.view === name) item.setAttribute("aria-current", "page"); else item.removeAttribute("aria-current");
  }
  document.getElementById("query").value = query.get("q") || "";
  if (focus) { scrollTo(0, 0); main.querySelector("h1")?.focus(); }
}

async function about() {
  const info = await site();
  document.getElementById("built").textContent = `${count(info.receipts)} receipts, built ${info.builtOn}. Every one was verified when this was built; the site itself is not signed.`;
  if (info.live) {
    document.getElementById("live-item").hidden = false;
    listen(async (said) => {
      const before = (await site()).base;
      if (said.base !== before) { await site(true); await about(); if (address().name !== "live") await show(false); }
    });
  }
}

document.getElementById("search").addEventListener("submit", (event) => {
  event.preventDefault();
  location.hash = `#/receipts?q=${encodeURIComponent(document.getElementById("query").value)}`;
});
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("hashchange", () => show(true));
about().catch(() => {});
show(false);
