// The data files: fetched once each, forgotten when a new build takes their place.

let current = null;
let pages = new Map();

async function json(path) {
  const answer = await fetch(path, { cache: "no-cache" });
  if (!answer.ok) throw new Error(`${path} cannot be read (${answer.status})`);
  return answer.json();
}

export async function site(again = false) {
  if (current === null || again) {
    const found = await json("data/current.json");
    if (current === null || found.base !== current.base) pages = new Map();
    current = found;
  }
  return current;
}

export async function page(name) {
  const { base } = await site();
  if (!pages.has(name)) {
    if (pages.size > 400) pages.clear();
    pages.set(name, json(base + name).catch(async (error) => {
      pages.delete(name);
      const now = await site(true); // a new build may have taken the place of ours
      if (now.base === base) throw error;
      return json(now.base + name);
    }));
  }
  return pages.get(name);
}

export async function position(ident) {
  if (!/^[0-9a-f]{4,64}$/.test(ident)) return null;
  const found = await page(`find-${ident[0]}.json`);
  const names = Object.keys(found).filter((name) => name.startsWith(ident) || ident.startsWith(name));
  return names.length === 1 ? found[names[0]] : null;
}

export async function receipt(ident) {
  const place = await position(ident);
  if (place === null) return null;
  const { detailSize } = await site();
  const items = await page(`detail-${Math.floor(place / detailSize)}.json`);
  return items[place % detailSize];
}

export async function* groupPages() {
  const { groups, groupSize } = await site();
  for (let number = 0; number * groupSize < Math.max(1, groups); number += 1) yield page(`groups-${number}.json`);
}

export async function groupNumber(profile, lane) {
  let before = 0;
  for await (const groups of groupPages()) {
    const place = groups.findIndex((group) => group[0] === profile && group[1] === lane);
    if (place >= 0) return before + place;
    before += groups.length;
  }
  return null;
}

export const pageCount = (total, size) => Math.max(1, Math.ceil(total / size));
