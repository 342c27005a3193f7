// The address is the state: path segments below the console's base, and the query. Views read `place` and call `go`.
import { signal } from "./preact.js";

export const base = new URL("..", import.meta.url).pathname;
/** Where the API is: beside the console. */
export const origin = location.origin + base.replace(/console\/$/, "").replace(/\/$/, "");

function read() {
  const path = location.pathname.startsWith(base) ? location.pathname.slice(base.length) : "";
  return { parts: path.split("/").filter(Boolean).map(decode), query: new URLSearchParams(location.search) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const place = signal(read());

/** `/console/models/Customer?sort=name`. Empty members of the query are left out; the branch stays as it is. */
export function address(parts, query = {}) {
  const kept = { branch: place.value.query.get("branch"), ...query };
  const chosen = Object.entries(kept).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(chosen).toString();
  return base + parts.map(encodeURIComponent).join("/") + (text ? `?${text}` : "");
}

/** This address with other members in its query; null or "" removes one. */
export function here(changes) {
  return address(place.value.parts, { ...Object.fromEntries(place.value.query), ...changes });
}

/** Has the reader moved since the page was loaded? */
export let hasMoved = false;

/** Where something is unsaved: what would leave it, until the reader has answered. */
export const leaving = signal(null);
let isGuarded = false;
export const guard = (isUnsaved) => (isGuarded = isUnsaved);

// Each entry of the browser's history has a number, so that a step back can be taken back.
let step = history.state?.step ?? 0;
history.replaceState({ step }, "");

/** Is it another page, or the same one on another branch? */
function leaves(from, to) {
  return from.pathname !== to.pathname || from.searchParams.get("branch") !== to.searchParams.get("branch");
}

let current = new URL(location.href);

function ask(leave) {
  leaving.value = () => {
    isGuarded = false;
    leave();
  };
  place.value = { ...place.value }; // a control that was changed shows again what is
}

/** `isSure`: nothing unsaved is left behind. */
export function go(href, { replace = false, isSure = false } = {}) {
  const to = new URL(href, location.href);
  if (isGuarded && !isSure && leaves(current, to)) return ask(() => go(href, { replace }));
  hasMoved ||= !replace;
  if (!replace) step += 1;
  history[replace ? "replaceState" : "pushState"]({ step }, "", href);
  current = to;
  place.value = read();
}

export const reading = {
  document: (model, id, query) => address(["models", model, "documents", id], query),
  history: (model, id, query) => address(["models", model, "documents", id, "history"], query),
  table: (model, query) => address(["models", model], query),
};

addEventListener("popstate", (event) => {
  const next = event.state?.step ?? 0;
  const by = next - step;
  if (isGuarded && by && leaves(current, new URL(location.href))) {
    history.go(-by);
    ask(() => history.go(by));
    return;
  }
  step = next;
  current = new URL(location.href);
  place.value = read();
});

// Links within the console change the address without loading the page. Anything but a plain click is the browser's.
document.addEventListener("click", (event) => {
  if (event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey)
    return;
  const link = event.target.closest?.("a[href]");
  if (!link || link.target || link.hasAttribute("download")) return;
  const url = new URL(link.href);
  if (url.origin !== location.origin || !url.pathname.startsWith(base) || url.hash) return;
  event.preventDefault();
  go(url.pathname + url.search);
});
