// Is it well: findings, dead letters with their reasons, what became of a key, and what it costs.
import { go, here, place } from "../address.js";
import { may } from "../catalog.js";
import { get, path, post } from "../client.js";
import { bytes, cell, count, number, time, usd } from "../format.js";
import {
  Answered,
  Badge,
  CodeButton,
  CodePanel,
  CopyButton,
  Empty,
  Heading,
  ProblemBox,
  tell,
  useAnswer,
} from "../parts.js";
import { Plot } from "../plot.js";
import { html, useState } from "../preact.js";
import { snippets } from "../snippets.js";

const TONES = { ok: "good", healthy: "good", note: "", trouble: "bad", degraded: "bad", unknown: "warn" };
const LOOKS = 4;
const DAYS_PER_MONTH = 30;
const CHANGES_PER_DAY = [0, 1_000, 5_000, 10_000, 50_000, 100_000];

export function HealthView() {
  const key = place.value.query.get("key");
  const answer = useAnswer((signal) => get("/v1/health", {}, signal), []);
  const isDenied = answer.problem?.status === 403; // and so are dead letters and keys: said once
  return html`<${Heading} title="Health">
      ${answer.value ? html`<${Badge} tone=${TONES[answer.value.status] ?? ""}>${answer.value.status}<//>` : null}
      <${CodeButton} /><button type="button" onClick=${answer.reload}>Check again</button>
    <//>
    <${CodePanel} snippet=${key ? snippets.why({ key }) : snippets.health()} />
    <${Answered} answer=${isDenied ? { ...answer, reload: null } : answer} lines=${5}>${(found) => html`<${Findings} findings=${found.findings ?? []} />`}<//>
    ${answer.isLoading || isDenied ? null : html`<${Rejected} isExpected=${answer.value?.findings?.some((one) => one.area === "dead letters" && one.state === "trouble")} />`}
    ${isDenied ? null : html`<${Why} key=${key ?? ""} asked=${key} />`}
    <${Cost} />`;
}

function Findings({ findings }) {
  if (!findings.length) return html`<${Empty} title="No findings" />`;
  return html`<div class="scroll" role="region" aria-label="Findings" tabindex="0"><table class="list findings">
    <thead><tr><th scope="col">State</th><th scope="col">Area</th><th scope="col">Finding</th></tr></thead>
    <tbody>${findings.map(
      (
        one,
        index,
      ) => html`<tr key=${index}><td><${Badge} tone=${TONES[one.state] ?? ""}>${one.state}<//></td><th scope="row">${one.area}</th>
        <td class="wrap">${one.text}${one.next ? html`<div class="next"><code>${one.next}</code> <${CopyButton} text=${one.next} /></div>` : null}</td></tr>`,
    )}</tbody>
  </table></div>`;
}

// Dead letters

/** Reading messages hides them from others for a moment, and so does the checkup: read them after it, and again. */
async function readLetters(isExpected, signal) {
  for (let turn = 1; ; turn += 1) {
    const found = await get("/v1/rejected", {}, signal);
    if (found.items.length || !isExpected || turn === LOOKS) return found;
    await new Promise((done) => setTimeout(done, 1000));
  }
}

function Rejected({ isExpected }) {
  const answer = useAnswer((signal) => readLetters(isExpected, signal), [isExpected]);
  return html`<section aria-label="Dead letters"><h2>Dead letters</h2>
    <${Answered} answer=${answer} lines=${2}>${(found) => (found.items.length ? html`<${Letters} items=${found.items} more=${found.more} sent=${(gone) => answer.set({ ...found, items: found.items.filter((one) => one !== gone) })} />` : html`<${NoLetters} isKnown=${found.available !== false} />`)}<//>
  </section>`;
}

function NoLetters({ isKnown }) {
  if (isKnown)
    return html`<${Empty} title="No dead letters">Messages that a worker could not process appear here, with the reason.<//>`;
  return html`<${Empty} title="No dead-letter queue is configured">Set <code>WORM_STACK</code> to the name of the stack, or <code>WORM_DLQ_URL</code> to the queue, where you run <code>worm serve</code>.<//>`;
}

function Letters({ items, more, sent }) {
  const [problem, setProblem] = useState(null);
  const [busy, setBusy] = useState(null);
  const redrive = async (one) => {
    setBusy(one.id);
    setProblem(null);
    try {
      await post(path("v1", "rejected", one.id, "redrive"), {});
      tell("The message was sent again");
      sent(one);
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(null);
    }
  };
  return html`<${ProblemBox} problem=${problem} />
    <div class="scroll" role="region" aria-label="Messages" tabindex="0"><table class="list">
      <thead><tr><th scope="col">Kind</th><th scope="col">Key</th><th scope="col">Reason</th><th scope="col">Sent</th><th scope="col">Queue</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${items.map(
        (one) => html`<tr key=${one.id ?? one.key}>
          <td><${Badge} tone="bad">${one.kind}<//></td>
          <td class="wrap">${one.key ? html`<a href=${here({ key: one.key })}><code>${one.key}</code></a>` : html`<span class="muted">–</span>`}</td>
          <td class="wrap">${one.reason}</td><td>${one.sent ? html`<time datetime=${one.sent}>${time(one.sent)}</time>` : "–"}</td><td>${one.queue ?? "–"}</td>
          <td class="row-actions">${may("admin") && one.id ? html`<button type="button" class="small" disabled=${busy === one.id} aria-label=${`Redrive ${one.key ?? one.id}`} onClick=${() => redrive(one)}>Redrive</button>` : null}</td>
        </tr>`,
      )}</tbody>
    </table></div>
    ${more ? html`<p class="muted">and ${number(more)} more</p>` : null}`;
}

// Why

const VERDICT_TONES = {
  recorded: "good",
  deleted: "",
  system: "",
  absent: "",
  behind: "warn",
  waiting: "warn",
  late: "warn",
  unmatched: "warn",
  rejected: "bad",
  damaged: "bad",
};

function Why({ asked }) {
  const [text, setText] = useState(asked ?? "");
  const submit = (event) => {
    event.preventDefault();
    go(here({ key: text.trim() || null }));
  };
  return html`<section aria-label="Why"><h2>What happened to an upload</h2>
    <form class="inline-form" onSubmit=${submit}>
      <label class="field grow"><span>Key</span><input type="text" class="mono" value=${text} placeholder="org/customers/jane@acme.com/profile.json" onInput=${(event) => setText(event.target.value)} /></label>
      <button type="submit">Explain</button>
    </form>
    ${asked ? html`<${Verdict} asked=${asked} />` : null}
  </section>`;
}

function Verdict({ asked }) {
  const answer = useAnswer((signal) => get("/v1/why", { key: asked }, signal), [asked]);
  return html`<${Answered} answer=${answer} lines=${5}>${(why) => {
    const facts = [
      ["Model", why.model],
      ["Id", why.id],
      ["Rule", why.rule],
      [
        "Object",
        why.object &&
          [
            why.object.size !== undefined && bytes(why.object.size),
            time(why.object.modified),
            why.object.versionId && `version ${why.object.versionId}`,
          ]
            .filter(Boolean)
            .join(", "),
      ],
      [
        "Entry",
        why.entry && `${why.entry.seq} (${why.entry.op}) at ${time(why.entry.ts)} by ${why.entry.actor ?? "unknown"}`,
      ],
      [
        "Row",
        why.row &&
          (why.row.isThere
            ? `present${why.row.seq ? `, from entry ${why.row.seq}` : ""}${why.row.behind ? `, ${count(why.row.behind, "entry", "entries")} behind` : ""}`
            : "missing"),
      ],
      ["Rejection", why.rejection],
      ["Dead letters", why.deadLetters?.length ? why.deadLetters.map((one) => one.reason).join("; ") : null],
    ].filter(([, value]) => value);
    return html`<div class="verdict"><p><${Badge} tone=${VERDICT_TONES[why.verdict] ?? ""}>${why.verdict}<//> ${why.explanation}</p>
      ${why.nextStep && why.nextStep !== "nothing" ? html`<p class="hint"><b>Next</b> ${why.nextStep}</p>` : null}
      <dl class="facts stacked">${facts.map(([title, value]) => html`<div key=${title}><dt>${title}</dt><dd>${cell(value)}</dd></div>`)}</dl></div>`;
  }}<//>`;
}

// Cost

const thousands = (value) => (value >= 1000 ? `${number(value / 1000)}k` : number(value));

function Cost() {
  const { query } = place.value;
  const perDay = { changes: Number(query.get("changes") ?? 1_000), queries: Number(query.get("queries") ?? 1_000) };
  const ask = (changes, queries, signal) =>
    get("/v1/cost", { changes: changes * DAYS_PER_MONTH, queries: queries * DAYS_PER_MONTH }, signal);
  const answer = useAnswer(
    async (signal) => {
      const [own, ...points] = await Promise.all(
        [perDay.changes, ...CHANGES_PER_DAY].map((changes) => ask(changes, perDay.queries, signal)),
      );
      return { own, points: points.map((one) => one.usdPerMonth / DAYS_PER_MONTH) };
    },
    [perDay.changes, perDay.queries],
  );
  const set = (name) => (event) =>
    go(here({ [name]: Math.max(0, Math.round(Number(event.target.value)) || 0) }), { replace: true });
  return html`<section aria-label="Cost"><h2>Cost per day</h2>
    <div class="inline-form">
      <label class="field"><span>Changes per day</span><input type="number" min="0" step="100" value=${perDay.changes} onChange=${set("changes")} /></label>
      <label class="field"><span>Queries per day</span><input type="number" min="0" step="100" value=${perDay.queries} onChange=${set("queries")} /></label>
    </div>
    <${Answered} answer=${answer} lines=${5}>${({
      own,
      points,
    }) => html`<p class="sum"><b>${usd(own.usdPerMonth / DAYS_PER_MONTH)}</b> per day, ${usd(own.usdPerMonth)} per month, at list prices${own.region ? ` in ${own.region}` : ""}${own.date ? ` as of ${own.date}` : ""}</p>
      <${Plot} xs=${CHANGES_PER_DAY} series=${[{ label: "USD per day", values: points, kind: "line" }]} height=${180} xValue=${thousands} yValue=${(value) => usd(value)}
        text=${`USD per day by changes per day: ${CHANGES_PER_DAY.map((changes, index) => `${number(changes)} changes ${usd(points[index])}`).join(", ")}`} />
      <details><summary>Estimate details</summary><div class="scroll" role="region" aria-label="Estimate details" tabindex="0"><table class="list">
        <thead><tr><th scope="col">Part</th><th scope="col">Item</th><th scope="col" class="number">USD per month</th></tr></thead>
        <tbody>${(own.lines ?? []).map((line, index) => html`<tr key=${index}><th scope="row">${line.group}</th><td class="wrap">${line.what}</td><td class="number">${usd(line.usd)}</td></tr>`)}</tbody>
      </table></div></details>`}<//>
  </section>`;
}
