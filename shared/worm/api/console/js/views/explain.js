// How a query is answered: the plan with its estimate, and what it really took where you run it.
import { address, go, here, place, reading } from "../address.js";
import { isPriced } from "../catalog.js";
import { get, path } from "../client.js";
import { parse } from "../filters.js";
import { bytes, number, time, usd } from "../format.js";
import { Answered, CodeButton, CodePanel, Heading, useAnswer } from "../parts.js";
import { html } from "../preact.js";
import { snippets } from "../snippets.js";
import { queryOf } from "./query.js";

const MEANINGS = {
  index_lookup: "reads the indexes that the filter needs, then the documents they point to",
  manifest_scan: "reads the table, and documents only for values that are too large for the table",
  manifest_targeted: "reads the table, then the documents it points to",
  full_scan: "lists the collection and reads every document",
};

export function ExplainView({ name }) {
  const { query } = place.value;
  const asked = queryOf(query);
  const explain = query.get("analyze") ? "analyze" : "true";
  const answer = useAnswer(
    (signal) =>
      get(path("v1", "models", name, "documents"), { ...asked, explain, allowScan: query.get("allowScan") }, signal),
    [name, JSON.stringify(asked), explain, query.get("allowScan")],
  );
  const table = reading.table(name, { ...Object.fromEntries(query), analyze: null, code: null });
  return html`<${Heading} title=${`Explain ${name}`} trail=${html`<a href=${address([])}>Collections</a> / <a href=${table}>${name}</a>`}>
      <${CodeButton} />
      ${
        explain === "true"
          ? html`<button type="button" class="primary" onClick=${() => go(here({ analyze: 1 }))}>Run and measure</button>`
          : html`<button type="button" onClick=${answer.reload}>Run again</button>`
      }
    <//>
    <${CodePanel} snippet=${snippets.query({ model: name, ...asked, filter: parse(asked.filter), explain })} />
    <p class="query-text"><code>${asked.filter || "all documents"}</code>${asked.sort ? html` sorted by <code>${asked.sort}</code>` : null}${asked.at ? html` as of <code>${asked.at}</code>` : null}</p>
    <${Answered} answer=${answer} lines=${6}>${(found) => html`<${Plan} plan=${found.plan ?? found} />`}<//>`;
}

export function Plan({ plan }) {
  const measures = [
    ["Requests", plan.estimatedRequests, plan.actualRequests, number],
    ["Bytes", plan.estimatedBytes, plan.actualBytes, bytes],
    ...(isPriced() ? [["USD", plan.estimatedUsd, plan.actualUsd, usd]] : []),
    ["Rows", undefined, plan.actualRows, number],
  ].filter(([, estimate, actual]) => estimate !== undefined || actual !== undefined);
  const hasActual = plan.actualRequests !== undefined;
  const facts = [
    ["Indexes", plan.indexes?.join(", ")],
    [
      "Files",
      plan.files === undefined ? undefined : Array.isArray(plan.files) ? plan.files.join(", ") : number(plan.files),
    ],
    ["Table fields", plan.manifestFields?.filter((name) => name !== ".").join(", ")],
    ["Table as of", plan.manifestAsOf && time(plan.manifestAsOf)],
    ["Assumed documents", plan.assumedDocuments === undefined ? undefined : number(plan.assumedDocuments)],
  ].filter(([, text]) => text);
  return html`<section class="plan" aria-label="Plan">
    <div class="strategy"><b class="mono">${plan.strategy}</b><span>${MEANINGS[plan.strategy] ?? ""}</span></div>
    <p><b>Why</b> ${plan.reason}</p>
    <table class="measures">
      <thead><tr><th scope="col">Measure</th><th scope="col" class="number">Estimate</th><th scope="col" class="number">Actual</th><th scope="col"><span class="unseen">Compared</span></th></tr></thead>
      <tbody>${measures.map(
        ([title, estimate, actual, shown]) => html`<tr key=${title}>
          <th scope="row">${title}</th>
          <td class="number">${estimate === undefined ? "–" : shown(estimate)}</td>
          <td class="number">${actual === undefined ? html`<span class="muted">${hasActual ? "–" : "not run"}</span>` : shown(actual)}</td>
          <td class="bars">${estimate !== undefined && actual !== undefined ? html`<${Bars} estimate=${estimate} actual=${actual} />` : null}</td>
        </tr>`,
      )}</tbody>
    </table>
    ${facts.length ? html`<dl class="facts stacked">${facts.map(([title, text]) => html`<div key=${title}><dt>${title}</dt><dd>${text}</dd></div>`)}</dl>` : null}
    <p class="muted">The estimate assumes a session with nothing in memory. The actual run can be cheaper.</p>
  </section>`;
}

function Bars({ estimate, actual }) {
  const largest = Math.max(estimate, actual) || 1;
  const width = (value) => Math.max(value ? 1 : 0, (value / largest) * 100);
  return html`<svg viewBox="0 0 100 14" preserveAspectRatio="none" aria-hidden="true">
    <rect class="bar-estimate" x="0" y="1" height="5" width=${width(estimate)} /><rect class="bar-actual" x="0" y="8" height="5" width=${width(actual)} />
  </svg>`;
}
