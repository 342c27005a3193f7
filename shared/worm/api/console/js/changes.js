// Documents compared: what differs by path, three versions by field, and a JSON Patch from one to another.
// A path is a list of member names. Arrays are values: they are compared and replaced as a whole.

/** The server writes these; they decide nothing. */
export const SYSTEM_FIELDS = new Set(["createdAt", "updatedAt"]);

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const has = (holder, name) => Object.prototype.hasOwnProperty.call(holder, name);

export function equal(a, b) {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b))
    return a.length === b.length && a.every((one, index) => equal(one, b[index]));
  if (!isObject(a) || !isObject(b)) return false;
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => has(b, name) && equal(a[name], b[name]));
}

const names = (...sides) => [...new Set(sides.flatMap((one) => (isObject(one) ? Object.keys(one) : [])))];
const side = (holder, name) => (isObject(holder) && has(holder, name) ? holder[name] : undefined);

/** `[{path, from, to}]`; undefined stands for missing. */
export function changes(from, to, path = []) {
  if (isObject(from) && isObject(to))
    return names(from, to).flatMap((name) => changes(side(from, name), side(to, name), [...path, name]));
  return equal(from, to) ? [] : [{ path, from, to }];
}

/** `[{path, base, mine, theirs, kind}]` of all fields that a side has changed; kind is `mine`, `theirs`, `same` or `conflict`. */
export function threeWay(base, mine, theirs, path = []) {
  if (path.length === 1 && SYSTEM_FIELDS.has(path[0])) return [];
  if (isObject(mine) && isObject(theirs))
    return names(base, mine, theirs).flatMap((name) =>
      threeWay(side(base, name), side(mine, name), side(theirs, name), [...path, name]),
    );
  const kind = kindOf(base, mine, theirs);
  return kind ? [{ path, base, mine, theirs, kind }] : [];
}

function kindOf(base, mine, theirs) {
  if (equal(mine, theirs)) return equal(base, mine) ? null : "same";
  if (equal(base, mine)) return "theirs";
  return equal(base, theirs) ? "mine" : "conflict";
}

/** Theirs with the fields whose choice is mine. */
export function merged(theirs, rows, choices) {
  const result = structuredClone(theirs);
  for (const row of rows) if (choices[label(row.path)] === "mine") put(result, row.path, row.mine);
  return result;
}

export function put(document, path, value) {
  let holder = document;
  for (const name of path.slice(0, -1)) {
    if (!isObject(holder[name])) holder[name] = {};
    holder = holder[name];
  }
  const last = path[path.length - 1];
  if (value === undefined) delete holder[last];
  else holder[last] = structuredClone(value);
}

/** A copy of the document with one value changed; undefined removes it. Numbers in a path are positions in arrays. */
export function replaced(document, path, value) {
  if (!path.length) return value;
  const [name, ...rest] = path;
  const copy = Array.isArray(document) ? [...document] : { ...(isObject(document) ? document : {}) };
  const inner = rest.length ? replaced(copy[name], rest, value) : value;
  if (inner !== undefined) copy[name] = inner;
  else if (Array.isArray(copy)) copy.splice(name, 1);
  else delete copy[name];
  return copy;
}

/** RFC 6902. Only what differs is written, so that other members stay byte for byte what they are. */
export function patch(from, to) {
  return changes(from, to).map(({ path, from: old, to: value }) => {
    if (value === undefined) return { op: "remove", path: pointer(path) };
    return { op: old === undefined ? "add" : "replace", path: pointer(path), value };
  });
}

/** Is there a whole number that a browser cannot keep? It would be written with other digits than it was read or typed with. */
export function isRounded(value) {
  if (typeof value === "number") return Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) <= 2 ** 64;
  return typeof value === "object" && value !== null && Object.values(value).some(isRounded);
}

export const pointer = (path) =>
  path.map((name) => "/" + String(name).replace(/~/g, "~0").replace(/\//g, "~1")).join("");

/** `address.city`; a name that has a dot itself is quoted. */
export const label = (path) => path.map((name) => (/[.\s"]/.test(name) ? JSON.stringify(name) : name)).join(".");

export function at(document, path) {
  return path.reduce((holder, name) => (holder === null || holder === undefined ? undefined : holder[name]), document);
}

/** The value of a column: a row of a selection has dotted names as keys, a document has objects. */
export function valueOf(document, dotted) {
  return has(document, dotted) ? document[dotted] : at(document, dotted.split("."));
}
