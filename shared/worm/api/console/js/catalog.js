// What every view needs to know: who asks, what they may do, and which models there are.
import { get, path } from "./client.js";
import { signal } from "./preact.js";
import { setDatabase } from "./snippets.js";

/** `GET /v1`; null before it is known. */
export const about = signal(null);

export async function loadAbout() {
  const found = await get("/v1");
  setDatabase(found.url);
  about.value = found;
}

export function may(scope) {
  const { mode, identity } = about.value ?? {};
  if (mode === "readonly" && scope !== "read") return false;
  const scopes = new Set(identity?.scopes ?? []);
  if (scope === "write") return scopes.has("write") || scopes.has("admin");
  return scopes.has(scope);
}

/** A directory costs nothing, whatever is asked of it. */
export const isPriced = () => !about.value?.url || about.value.url.startsWith("s3://");

export const mayChange = (model) => may("write") && model?.mode === "readwrite";
export const mayCreate = (model) => may("write") && model?.mode !== "readonly";

/** `GET /v1/branches`; empty where no model is in a space. */
export const branches = signal([]);

export async function loadBranches() {
  branches.value = (await get("/v1/branches")).items;
}

const details = new Map();

/** `GET /v1/models/{m}`, remembered for this page: a schema changes seldom. */
export async function readModel(name, signal) {
  if (!details.has(name)) details.set(name, await get(path("v1", "models", name), {}, signal));
  return details.get(name);
}

export async function readModels(signal) {
  return (await get("/v1/models", {}, signal)).items;
}
