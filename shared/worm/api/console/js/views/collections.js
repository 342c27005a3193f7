// All models: how many documents, how fresh their tables are, what is indexed, what was rejected.
import { address, reading } from "../address.js";
import { readModels } from "../catalog.js";
import { get } from "../client.js";
import { number, relative, time } from "../format.js";
import { Answered, Badge, CodeButton, CodePanel, Empty, Heading, useAnswer } from "../parts.js";
import { html } from "../preact.js";
import { snippets } from "../snippets.js";

export const TONES = { ready: "good", fresh: "good", stale: "warn", missing: "bad" };

export function CollectionsView() {
  const models = useAnswer((signal) => readModels(signal), []);
  const rejected = useAnswer((signal) => get("/v1/rejected", {}, signal).catch(() => ({ items: [] })), []);
  return html`<${Heading} title="Collections"><${CodeButton} /><//>
    <${CodePanel} snippet=${snippets.models()} />
    <${Answered} answer=${models} lines=${5}>${(items) => html`<${Models} items=${items} rejected=${rejected.value?.items ?? []} />`}<//>`;
}

function Models({ items, rejected }) {
  if (!items.length)
    return html`<${Empty} title="No models yet">Push a schema: <code>worm push schema.json</code>, or <code>db.push()</code> in Python.<//>`;
  return html`<div class="scroll" role="region" aria-label="Collections" tabindex="0"><table class="list">
    <thead><tr>
      <th scope="col">Model</th><th scope="col" class="number">Documents</th><th scope="col">Table</th><th scope="col">Updated</th>
      <th scope="col">Indexes</th><th scope="col">Keeps</th><th scope="col">Rejected</th>
    </tr></thead>
    <tbody>${items.map((one) => html`<${Model} key=${one.name} model=${one} rejected=${rejected.filter((letter) => letter.model === one.name).length} />`)}</tbody>
  </table></div>`;
}

function Model({ model, rejected }) {
  const state = model.table?.state ?? "none";
  const keeps = [
    model.oplog && "history",
    model.softDelete && "trash",
    model.space && `space ${model.space}`,
    model.mode !== "readwrite" && model.mode,
  ].filter(Boolean);
  return html`<tr>
    <th scope="row"><a href=${reading.table(model.name)}>${model.name}</a><div class="path">${model.path}</div></th>
    <td class="number">${model.count === null || model.count === undefined ? "–" : number(model.count)}</td>
    <td><${Badge} tone=${TONES[state]}>${state}<//></td>
    <td>${model.table?.updatedAt ? html`<time datetime=${model.table.updatedAt} title=${time(model.table.updatedAt)}>${relative(model.table.updatedAt)}</time>` : html`<span class="muted">–</span>`}</td>
    <td class="wrap">${model.indexes?.length ? model.indexes.map((index) => html`<span class="tag" key=${index.name} title=${`${index.name}: ${index.type}`}>${index.field}${index.unique ? " · unique" : ""}</span> `) : html`<span class="muted">none</span>`}</td>
    <td class="wrap">${keeps.length ? keeps.map((text) => html`<span class="tag" key=${text}>${text}</span> `) : html`<span class="muted">–</span>`}</td>
    <td>${rejected ? html`<a href=${address(["health"])}><${Badge} tone="bad">${rejected}<//></a>` : html`<span class="muted">none</span>`}</td>
  </tr>`;
}
