// Changes as they happen, after the newest ones of the history. EventSource cannot send a token, so the stream is read by
// fetch; where the server gives JSON instead, each answer is one long poll. The cursor makes both resumable.
import { address, go, here, place, reading } from "../address.js";
import { readModels } from "../catalog.js";
import { get, Problem, request } from "../client.js";
import { count, relative, tick, time } from "../format.js";
import { announce, Badge, CodeButton, CodePanel, Empty, Heading, ProblemBox, useAnswer, useNow } from "../parts.js";
import { Plot } from "../plot.js";
import { html, useEffect, useMemo, useState } from "../preact.js";
import { snippets } from "../snippets.js";
import { OP_TONES } from "./history.js";

const KEPT = 500;
const BACKLOG = 100;
const WAIT_SECONDS = 20;
const BUCKETS = 30;

/** Follow from `cursor.after` (null: from now) until `signal` is aborted. `heard(items)`, `told(state)`. */
export async function follow({ model, cursor, signal, heard, told }) {
  let failures = 0;
  while (!signal.aborted) {
    try {
      const headers = { Accept: "text/event-stream, application/json" };
      const response = await request("GET", "/v1/changes", {
        query: { model, after: cursor.after, wait: WAIT_SECONDS },
        headers,
        signal,
      });
      failures = 0;
      const isLive = () => told({ isLive: Boolean(cursor.after) }); // with a cursor, no pause loses a change
      isLive();
      if (response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
        for await (const event of events(response.body)) {
          cursor.after = event.id ?? cursor.after;
          if (event.name === "problem") throw new Problem(event.value.status, event.value);
          isLive();
          if (event.name === "change") heard([event.value]);
        }
      } else {
        const page = await response.json();
        cursor.after = page.cursor ?? cursor.after;
        isLive();
        heard(page.items);
      }
    } catch (problem) {
      if (signal.aborted) return;
      failures += 1;
      told({ isLive: false, problem });
      if (problem.status >= 400 && problem.status < 500) return;
      await new Promise((done) => setTimeout(done, Math.min(30_000, 500 * 2 ** failures)));
    }
  }
}

/** `{id, name, value}` of each event of a stream; comments that keep it open are left out. */
async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    buffer = (buffer + value).replace(/\r\n?/g, "\n");
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const event = parseEvent(buffer.slice(0, end));
      buffer = buffer.slice(end + 2);
      if (event) yield event;
    }
  }
}

function parseEvent(text) {
  const lines = text.split("\n");
  const of = (name) =>
    lines.filter((line) => line.startsWith(`${name}:`)).map((line) => line.slice(name.length + 1).replace(/^ /, ""));
  const data = of("data").join("\n");
  return data ? { id: of("id").at(-1) ?? null, name: of("event").at(-1) ?? "message", value: JSON.parse(data) } : null;
}

const keyOf = (item) => `${item.model}/${item.id}/${item.seq}/${item.op}`;

/** Times have whole seconds: within one, what came last is first. */
const newestFirst = (a, b) => (a.ts < b.ts ? 1 : a.ts > b.ts ? -1 : 0);

export function FeedView() {
  const { query } = place.value;
  const model = query.get("model");
  const isPaused = query.has("paused");
  const models = useAnswer((signal) => readModels(signal), []);
  const [items, setItems] = useState([]);
  const [state, setState] = useState({ isLive: false });
  const [older, setOlder] = useState(null);
  const cursor = useMemo(() => ({ after: null, kept: KEPT }), [model]);
  const add = (fresh, isLive) => {
    if (!fresh.length) return;
    if (isLive) announce(count(fresh.length, "new change"));
    setItems((last) => {
      const known = new Set(last.map(keyOf));
      const added = fresh.filter((one) => !known.has(keyOf(one))).map((one) => ({ ...one, isLive }));
      return (isLive ? [...added.reverse(), ...last] : [...last, ...added]).sort(newestFirst).slice(0, cursor.kept);
    });
  };
  const readOlder = async () => {
    try {
      const page = await get("/v1/history", { model, limit: BACKLOG, cursor: older });
      cursor.kept += page.items.length;
      add(page.items, false);
      setOlder(page.cursor);
    } catch (problem) {
      setState({ isLive: false, problem });
    }
  };
  useEffect(() => {
    const aborter = new AbortController();
    setItems([]);
    setOlder(null);
    get("/v1/history", { model, limit: BACKLOG }, aborter.signal).then(
      (page) => (add(page.items, false), setOlder(page.cursor)),
      (problem) => problem.name === "AbortError" || setState({ isLive: false, problem }),
    );
    return () => aborter.abort();
  }, [model]);
  useEffect(() => {
    if (isPaused) return undefined;
    const aborter = new AbortController();
    follow({ model, cursor, signal: aborter.signal, heard: (fresh) => add(fresh, true), told: setState });
    return () => (aborter.abort(), setState({ isLive: false }));
  }, [model, isPaused]);
  return html`<${Heading} title="Changes">
      <${Badge} tone=${state.isLive ? "good" : isPaused ? "" : "warn"}>${state.isLive ? "live" : isPaused ? "paused" : "connecting"}<//>
      <label class="inline"><span>Model</span> <select value=${model ?? ""} onChange=${(event) => go(here({ model: event.target.value || null }))}>
        <option value="">all</option>${(models.value ?? []).filter((one) => one.oplog).map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}
      </select></label>
      <button type="button" aria-pressed=${isPaused} onClick=${() => go(here({ paused: isPaused ? null : 1 }), { replace: true })}>${isPaused ? "Resume" : "Pause"}</button>
      <${CodeButton} />
    <//>
    <${CodePanel} snippet=${snippets.changes({ model })} />
    ${query.get("branch") ? html`<p class="notice">These are the changes on the main branch. For the changes on this branch, see <a href=${address(["branches"], { compare: query.get("branch") })}>Branches</a>.</p>` : null}
    <${ProblemBox} problem=${state.problem} />
    <${Activity} items=${items} />
    ${items.length ? html`<${Changes} items=${items} />${older ? html`<p class="older"><button type="button" onClick=${readOlder}>Older</button></p>` : null}` : html`<${Empty} title="No changes yet">Changes appear here as they are recorded.<//>`}`;
}

function Activity({ items }) {
  const times = items.map((one) => Date.parse(one.ts) / 1000).filter((one) => !Number.isNaN(one));
  const last = Math.max(...times, Date.now() / 1000);
  const first = Math.min(...times, last - 60);
  const each = Math.max(1, (last - first) / (BUCKETS - 1));
  const sums = new Array(BUCKETS).fill(0);
  for (const one of times) sums[Math.min(BUCKETS - 1, Math.floor((one - first) / each))] += 1;
  const xs = sums.map((_, index) => Math.round(first + index * each));
  const busiest = Math.max(...sums);
  const isWhole = (value) => (Number.isInteger(value) ? String(value) : "");
  return html`<${Plot} xs=${xs} series=${[{ label: "changes", values: sums, kind: "bars" }]} isTime height=${110} xValue=${(value) => tick(value, last - first)} yValue=${isWhole}
    text=${`The newest ${count(items.length, "change")} over time; at most ${busiest} in one of ${BUCKETS} intervals`} />`;
}

function Changes({ items }) {
  const now = useNow(5000);
  return html`<div class="scroll" role="region" aria-label="Changes" tabindex="0"><table class="list feed" aria-live="off">
    <thead><tr><th scope="col">When</th><th scope="col">Change</th><th scope="col">Document</th><th scope="col" class="number">Entry</th><th scope="col">By</th><th scope="col">Reason</th></tr></thead>
    <tbody>${items.map(
      (one) => html`<tr key=${keyOf(one)} class=${one.isLive ? "live" : ""} data-live=${one.isLive ? "yes" : null}>
        <td><time datetime=${one.ts} title=${time(one.ts)}>${relative(one.ts, now)}</time></td>
        <td><${Badge} tone=${OP_TONES[one.op] ?? ""}>${one.op}<//></td>
        <td><a href=${reading.history(one.model, one.id, { seq: one.seq, model: null })}>${one.id}</a> <span class="path">${one.model}</span></td>
        <td class="number">${one.seq}</td><td>${one.actor ?? html`<span class="muted">unknown</span>`}</td>
        <td class="wrap">${one.reason ?? html`<span class="muted">–</span>`}</td>
      </tr>`,
    )}</tbody>
  </table></div>`;
}
