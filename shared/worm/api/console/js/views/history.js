// The history of one document: a slider over its entries, what each was, what differs, and the way back.
import { address, go, here, place, reading } from "../address.js";
import { mayChange, readModel } from "../catalog.js";
import { because, get, path, readDocument } from "../client.js";
import { pretty, relative, time } from "../format.js";
import {
  Answered,
  Badge,
  CodeButton,
  CodePanel,
  Confirm,
  Differences,
  Empty,
  Heading,
  ProblemBox,
  Slider,
  tell,
  useAnswer,
  Waiting,
} from "../parts.js";
import { html, useMemo, useState } from "../preact.js";
import { snippets } from "../snippets.js";

const LIMIT = 200;
export const OP_TONES = { create: "good", restore: "good", update: "", delete: "bad" };

export function HistoryView({ name, id }) {
  const branch = place.value.query.get("branch");
  const target = (...rest) => path("v1", "models", name, "documents", id, ...rest);
  const answer = useAnswer(
    async (signal) => {
      const [model, page, current] = await Promise.all([
        readModel(name, signal),
        get(target("history"), { limit: LIMIT, branch }, signal),
        readDocument("GET", target(), { query: { branch }, signal }).catch((problem) => {
          if (problem.status === 404) return null;
          throw problem;
        }),
      ]);
      return { model, entries: [...page.items].reverse(), current, older: page.cursor };
    },
    [name, id, branch],
  );
  const readOlder = async ({ entries, older, ...rest }) => {
    const page = await get(target("history"), { limit: LIMIT, before: older, branch });
    answer.set({ ...rest, entries: [...[...page.items].reverse(), ...entries], older: page.cursor });
  };
  const seq = Number(place.value.query.get("seq"));
  const { etag, version } = answer.value?.current ?? {};
  const snippet = seq
    ? answer.value && snippets.rollback({ model: name, id, seq, branch, etag, version })
    : snippets.history({ model: name, id, branch, limit: LIMIT });
  const trail = html`<a href=${address([])}>Collections</a> / <a href=${reading.table(name)}>${name}</a> / <a href=${reading.document(name, id)}>${id}</a>`;
  return html`<${Heading} title="History" trail=${trail}><${CodeButton} /><//>
    <${CodePanel} snippet=${snippet} />
    <${Answered} answer=${answer} lines=${8}>${(value) => (value.entries.length ? html`<${Timeline} ...${value} target=${target} branch=${branch} reload=${answer.reload} readOlder=${() => readOlder(value)} />` : html`<${Empty} title="No entries yet" />`)}<//>`;
}

function Timeline({ model, entries, current, older, target, branch, reload, readOlder }) {
  const { query } = place.value;
  const [rolling, setRolling] = useState(false);
  const newest = entries.length - 1;
  const asked = query.get("seq");
  const found = asked ? entries.findIndex((one) => String(one.seq) === asked) : newest;
  const position = found < 0 ? newest : found;
  const entry = entries[position];
  const against = query.get("against") === "now" ? "now" : "before";
  const states = useMemo(() => new Map(), [entries]);
  const state = async (seq, signal) => {
    if (!states.has(seq)) states.set(seq, await get(target("at"), { seq, branch }, signal));
    return states.get(seq);
  };
  const shown = useAnswer((signal) => state(entry.seq, signal), [entry.seq, entries]);
  const other = useAnswer(
    async (signal) => {
      if (against === "now") return { document: current?.document ?? null };
      const before = entries[position - 1];
      if (before) return state(before.seq, signal);
      return older ? state(entry.seq - 1, signal) : { document: null };
    },
    [entry.seq, against, entries],
  );
  const set = (to) => go(here({ seq: to === newest ? null : entries[to].seq }), { replace: true });
  const describe = (to) =>
    `entry ${entries[to].seq}, ${entries[to].op} by ${entries[to].actor ?? "unknown"}, ${time(entries[to].ts)}`;
  const isNewest = position === newest;
  const rollback = async (reason) => {
    await readDocument("POST", target("rollback"), {
      query: { branch },
      headers: {
        ...(current ? { "If-Match": current.etag } : {}),
        ...because(reason),
        "Idempotency-Key": crypto.randomUUID(),
      },
      body: { toSeq: entry.seq },
    });
    tell(`Rolled back to entry ${entry.seq}`);
    go(here({ seq: null }), { replace: true });
    reload();
  };
  const canRoll = mayChange(model) && !isNewest && entry.op !== "delete";
  return html`<div class="timeline">
    <div class="timeline-bar">
      <${Slider} label="Entry" steps=${entries.length} position=${position} set=${set} describe=${describe} />
      <p class="entry" aria-live="polite">
        <b>Entry ${entry.seq}</b> <${Badge} tone=${OP_TONES[entry.op]}>${entry.op}<//>
        <time datetime=${entry.ts} title=${relative(entry.ts)}>${time(entry.ts)}</time>
        <span>by <b>${entry.actor ?? "unknown"}</b></span>
        ${entry.reason ? html`<span class="reason">“${entry.reason}”</span>` : null}
        ${entry.branch ? html`<span class="tag">${entry.branch}</span>` : null}
        ${isNewest ? html`<span class="muted">newest</span>` : null}
        ${canRoll ? html`<button type="button" class="primary" onClick=${() => setRolling(true)}>Roll back to this</button>` : null}
      </p>
    </div>
    <div class="history-body">
      <${Entries} entries=${entries} position=${position} set=${set} readOlder=${older ? readOlder : null} />
      <div class="history-main">
        <div role="group" aria-label="Compare with" class="segments">
          <button type="button" aria-pressed=${against === "before"} onClick=${() => go(here({ against: null }), { replace: true })}>What it changed</button>
          <button type="button" aria-pressed=${against === "now"} onClick=${() => go(here({ against: "now" }), { replace: true })}>Compared with now</button>
        </div>
        ${
          shown.problem || other.problem
            ? html`<${ProblemBox} problem=${shown.problem ?? other.problem} retry=${shown.reload} />`
            : shown.value && other.value
              ? against === "now"
                ? html`<${Differences} from=${shown.value.document} to=${other.value.document} fromTitle=${`Entry ${entry.seq}`} toTitle=${current ? "Now" : "Now: deleted"} />`
                : html`<${Differences} from=${other.value.document} to=${shown.value.document} fromTitle="Before" toTitle=${`Entry ${entry.seq}`} />`
              : html`<${Waiting} lines=${3} />`
        }
        <h2>Document at entry ${entry.seq}</h2>
        ${shown.value ? (shown.value.document === null ? html`<${Empty} title="Deleted at this point" />` : html`<pre class="json" tabindex="0" aria-label="Document as JSON">${pretty(shown.value.document)}</pre>`) : html`<${Waiting} lines=${8} />`}
        ${entry.metadata && Object.keys(entry.metadata).length ? html`<h2>Metadata</h2><pre class="json" tabindex="0" aria-label="Metadata as JSON">${pretty(entry.metadata)}</pre>` : null}
      </div>
    </div>
    ${
      rolling
        ? html`<${Confirm} title=${`Roll back to entry ${entry.seq}?`} action="Roll back" asksReason act=${rollback} close=${() => setRolling(false)}>
          <p>This saves the document again as it was. It does not rewrite the history: it adds an entry, which you can also roll back.</p>
          <${Differences} from=${current?.document ?? null} to=${shown.value?.document} fromTitle="Now" toTitle="After" />
        <//>`
        : null
    }
  </div>`;
}

function Entries({ entries, position, set, readOlder }) {
  const rows = entries.map((entry, index) => [entry, index]).reverse();
  return html`<ol class="entries" aria-label="Entries, newest first">${rows.map(
    ([
      entry,
      index,
    ]) => html`<li key=${entry.seq}><button type="button" aria-current=${index === position ? "true" : null} onClick=${() => set(index)}>
      <span class="mono">${entry.seq}</span><span><${Badge} tone=${OP_TONES[entry.op]}>${entry.op}<//> <span class="muted">${relative(entry.ts)}</span><br />${entry.actor ?? "unknown"}</span>
    </button></li>`,
  )}${readOlder ? html`<li key="older"><button type="button" class="small" onClick=${readOlder}>Older entries</button></li>` : null}</ol>`;
}
