// Elements, and figures in words. Every text that comes from a file becomes a text node: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";
export const RESULTS = ["Passed", "Failed", "Inconclusive"];

function made(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const el = (tag, attributes = {}, ...children) => made(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => made(document.createElementNS(SVG, tag), attributes, children);

// Words from a receipt keep their own direction and do not turn what is around them.
export const foreign = (text) => el("bdi", {}, String(text));
export const digest = (text) => el("code", { class: "digest" }, String(text));
export const badge = (code) => el("span", { class: `badge ${RESULTS[code].toLowerCase()}` }, RESULTS[code]);
export const codeOf = (result) => ["PASSED", "FAILED", "INCONCLUSIVE"].indexOf(result);

export const link = (path, ...children) => el("a", { href: "#/" + path.map(encodeURIComponent).join("/") }, ...children);

export function table(caption, head, rows, attributes = {}) {
  const cell = (tag, content, words) => el(tag, { class: words ? "words" : null, scope: tag === "th" ? "col" : null }, content);
  return el("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" },
    el("table", attributes, el("caption", {}, caption),
      el("thead", {}, el("tr", {}, head.map(([name, words]) => cell("th", name, words)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((content, place) => place === 0
        ? el("th", { scope: "row", class: head[0][1] ? "words" : null }, content)
        : cell("td", content, head[place][1])))))));
}

export function count(number) {
  return number.toLocaleString("en");
}

function three(value) {
  return value >= 99.95 ? Math.round(value).toLocaleString("en") : value.toFixed(value >= 9.995 ? 1 : 2);
}

export function seconds(us) {
  if (us === null || us === undefined) return "none";
  if (us < 1000) return `${us} µs`;
  if (us < 999500) return `${three(us / 1000)} ms`;
  if (us < 99950000) return `${three(us / 1e6)} s`;
  const whole = Math.round(us / 1e6);
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 3600)} h ${Math.floor(whole % 3600 / 60)} min`;
}

export function bytes(number) {
  let value = number, place = 0;
  while (value >= 1024 && place < 4) { value /= 1024; place += 1; }
  return place ? `${three(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][place]}` : `${number} B`;
}

export const plural = (number, noun) => `${count(number)} ${noun}${number === 1 ? "" : "s"}`;

export function span(ms) {
  const whole = Math.max(0, Math.floor(ms / 1000));
  if (whole >= 2 * 86400) return plural(Math.floor(whole / 86400), "day");
  if (whole >= 2 * 3600) return plural(Math.floor(whole / 3600), "hour");
  if (whole >= 120) return plural(Math.floor(whole / 60), "minute");
  return plural(whole, "second");
}

export function age(time) {
  return el("time", { datetime: time, title: time }, `${span(Date.now() - Date.parse(time))} ago`);
}

export const expired = (validUntil) => Date.parse(validUntil) <= Date.now();

export function validity(validUntil) {
  const left = Date.parse(validUntil) - Date.now();
  if (left <= 0) return el("strong", { class: "expired" }, "expired");
  return el("span", {}, `valid for ${span(left)}`);
}

export const heading = (text, ...more) => el("h1", { tabindex: "-1" }, text, ...more);
