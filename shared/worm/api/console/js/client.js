// Calls of the HTTP API: the token, problems as the server says them, and what every answer cost.
import { origin } from "./address.js";
import { signal } from "./preact.js";

const TOKEN = "worm.token";
const CALLS_KEPT = 60;

export const token = signal(sessionStorage.getItem(TOKEN));
/** Why the last token was refused. */
export const refusal = signal(null);
/** What this page has cost so far, and its newest calls. */
export const spent = signal({ requests: 0, usd: 0, calls: [] });

export function setToken(text) {
  if (text) refusal.value = null;
  if (text) sessionStorage.setItem(TOKEN, text);
  else sessionStorage.removeItem(TOKEN);
  token.value = text || null;
}

const tabs = new BroadcastChannel("worm.token");

/** A new tab asks the others of this origin for the token, once; a tab that has one answers. Nothing else can listen. */
export function shareToken() {
  tabs.onmessage = ({ data }) => {
    if (data.asks && token.value) tabs.postMessage({ token: token.value });
    else if (data.forgets) setToken(null);
    else if (data.token && !token.value && !refusal.value) setToken(data.token);
  };
  if (!token.value) tabs.postMessage({ asks: true });
}

export function forgetToken() {
  setToken(null);
  tabs.postMessage({ forgets: true });
}

/** `#token=…` of the link that `worm serve` prints. It leaves the address at once, so that it is in no history. */
export function takeTokenFromAddress() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  setToken(given);
  history.replaceState(history.state, "", location.pathname + location.search);
}

/** What the server answered instead (RFC 9457), or why there is no answer. */
export class Problem extends Error {
  constructor(status, body = {}) {
    super(body.title || `The server returned ${status}.`);
    this.status = status;
    this.body = body;
  }
}

function url(path, query = {}) {
  const chosen = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(chosen).toString();
  return origin + path + (text ? `?${text}` : "");
}

/** `/v1/models/Customer/documents/a%2Fb`: the parts are encoded. */
export function path(...parts) {
  return "/" + parts.map(encodeURIComponent).join("/");
}

function note(method, target, response, milliseconds) {
  const requests = Number(response.headers.get("Worm-Requests")) || 0;
  const usd = Number(response.headers.get("Worm-Usd")) || 0;
  const call = { method, path: target.slice(origin.length), status: response.status, requests, usd, milliseconds };
  const { value } = spent;
  spent.value = {
    requests: value.requests + requests,
    usd: value.usd + usd,
    calls: [call, ...value.calls].slice(0, CALLS_KEPT),
  };
}

/** The raw response; throws a Problem where it is none of success. */
export async function request(method, target, { query, body, type = "application/json", headers = {}, signal } = {}) {
  const full = url(target, query);
  const sent = { ...headers };
  if (token.value) sent.Authorization = `Bearer ${token.value}`;
  if (body !== undefined) sent["Content-Type"] = type;
  const began = performance.now();
  let response;
  try {
    response = await fetch(full, {
      method,
      headers: sent,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, {
      title: "The server is not responding",
      detail: String(error.message),
      hint: "Is `worm serve` still running? Start it again, then retry.",
    });
  }
  note(method, full, response, performance.now() - began);
  if (response.ok) return response;
  const problem = new Problem(response.status, await problemBody(response));
  if (response.status === 401) {
    refusal.value = problem;
    setToken(null);
  }
  throw problem;
}

async function problemBody(response) {
  try {
    return await response.json();
  } catch {
    return { title: `The server returned ${response.status} ${response.statusText}`.trim() };
  }
}

export async function call(method, target, options) {
  const response = await request(method, target, options);
  return response.status === 204 ? null : response.json();
}

export const get = (target, query, signal) => call("GET", target, { query, signal });
export const post = (target, body, options) => call("POST", target, { body, ...options });

/** A document with its ETag, which is the condition of the next write. */
export async function readDocument(method, target, options) {
  const response = await request(method, target, options);
  return { ...(await response.json()), etag: response.headers.get("ETag") };
}

export const because = (reason) => (reason ? { "Worm-Reason": encodeURIComponent(reason) } : {});
