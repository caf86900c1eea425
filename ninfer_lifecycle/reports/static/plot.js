// A series over time: dots by result, the threshold, marks of releases. Units on both axes.

import { RESULTS, svg } from "./dom.js";

const WIDTH = 880, HEIGHT = 330, LEFT = 84, RIGHT = 20, TOP = 46, BOTTOM = 52;

export const UNITS = { us: ["seconds", 1e6], ppm: ["percent", 1e4], tokens: ["tokens", 1], count: ["faults", 1] };

function ticks(low, high, most) {
  if (high <= low) return [low];
  let step = 10 ** Math.floor(Math.log10((high - low) / most));
  for (const by of [1, 2, 5, 10, 20]) if ((high - low) / (step * by) <= most - 1 || by === 20) { step *= by; break; }
  const found = [];
  for (let number = Math.ceil(low / step - 1e-9); number <= high / step + 1e-9; number += 1) found.push(number * step || 0); // no minus nought
  return found;
}

function logTicks(low, high) {
  for (const digits of [[1, 2, 5], [1, 3], [1]]) {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) for (const digit of digits) found.push(digit * 10 ** power);
    const inside = found.filter((value) => value >= low && value <= high);
    if (inside.length <= 7 || digits.length === 1) return inside;
  }
  return [];
}

const short = (value) => (value !== 0 && Math.abs(value) < 10 && value !== Math.trunc(value) ? String(Number(value.toPrecision(3))) : Math.round(value).toLocaleString("en"));

function timeTicks(from, to) {
  const day = 86400000, steps = [1 / 24, 0.25, 1, 2, 7, 14, 30, 91, 182, 365, 730, 1825].map((days) => days * day);
  const step = steps.find((size) => (to - from) / size <= 6) || 3650 * day;
  const found = [];
  for (let at = Math.ceil(from / step) * step; at <= to; at += step) found.push(at);
  return { found, label: (at) => (step < day ? new Date(at).toISOString().slice(11, 16) : new Date(at).toISOString().slice(0, 10)) };
}

// points: {time, value, threshold or -1, code, ident}, oldest first, in the unit of the axis; marks: {time, label}
export function series(points, marks, unit, title) {
  const values = points.flatMap((point) => (point.threshold >= 0 ? [point.value, point.threshold] : [point.value]));
  let low = Math.min(...values), high = Math.max(...values);
  const log = low > 0 && high / low > 20;
  if (log) { low /= 1.3; high *= 1.3; } else { const pad = (high - low) * 0.08 || Math.abs(high) * 0.2 || 1; low = low >= 0 ? Math.max(0, low - pad) : low - pad; high += pad; }
  let from = points[0].time, to = points[points.length - 1].time;
  if (to - from < 3600000) { from -= 1800000; to += 1800000; }
  const x = (time) => LEFT + ((time - from) / (to - from)) * (WIDTH - LEFT - RIGHT);
  const share = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
  const y = (value) => HEIGHT - BOTTOM - Math.max(0, Math.min(1, share(value))) * (HEIGHT - BOTTOM - TOP);
  const at = timeTicks(from, to);
  const text = (px, py, words, css, anchor = "middle", more = {}) => svg("text", { x: px, y: py, class: css, "text-anchor": anchor, ...more }, words);
  const picture = svg("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img", "aria-label": `${title}, ${points.length} receipts. The table below has the figures.` });
  for (const value of log ? logTicks(low, high) : ticks(low, high, 6)) {
    picture.append(svg("line", { class: "grid", x1: LEFT, x2: WIDTH - RIGHT, y1: y(value), y2: y(value) }), text(LEFT - 8, y(value) + 4, short(value), "tick", "end"));
  }
  let edge = -Infinity;
  for (const time of at.found) {
    picture.append(svg("line", { class: "grid", x1: x(time), x2: x(time), y1: TOP, y2: HEIGHT - BOTTOM }));
    if (x(time) - 36 > edge && x(time) + 36 < WIDTH) { picture.append(text(x(time), HEIGHT - BOTTOM + 18, at.label(time), "tick")); edge = x(time) + 40; }
  }
  picture.append(svg("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM }),
    text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 10, "end of the run, UTC", "axis-title"),
    text(0, 0, unit + (log ? ", logarithmic" : ""), "axis-title", "middle", { transform: `translate(18 ${(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)` }));
  edge = -Infinity;
  for (const mark of marks.filter((item) => item.time >= from && item.time <= to).sort((a, b) => a.time - b.time)) {
    picture.append(svg("line", { class: "mark", x1: x(mark.time), x2: x(mark.time), y1: TOP - 14, y2: HEIGHT - BOTTOM }, svg("title", {}, mark.label)));
    if (x(mark.time) - 26 > edge) { picture.append(text(Math.min(x(mark.time), WIDTH - 30), TOP - 20, "release", "mark-label")); edge = x(mark.time) + 30; }
  }
  const limits = points.filter((point) => point.threshold >= 0);
  if (limits.length) {
    const path = limits.map((point, place) => (place ? `H${x(point.time)}V${y(point.threshold)}` : `M${LEFT} ${y(point.threshold)}`)).join("") + `H${WIDTH - RIGHT}`;
    picture.append(svg("path", { class: "limit-line", d: path }));
  }
  picture.append(svg("path", { class: "thread", d: points.map((point, place) => `${place ? "L" : "M"}${x(point.time)} ${y(point.value)}`).join("") }));
  for (const point of points) {
    picture.append(svg("circle", { class: `point ${RESULTS[point.code].toLowerCase()}`, cx: x(point.time), cy: y(point.value), r: points.length > 120 ? 2.4 : 4 },
      svg("title", {}, `${new Date(point.time).toISOString().slice(0, 16)}: ${short(point.value)} ${unit}, ${RESULTS[point.code]}`)));
  }
  return picture;
}
