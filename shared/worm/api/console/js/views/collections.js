// All models: how many documents, how fresh their tables are, what is indexed, what was rejected.
import { address, here, place, reading } from "../address.js";
import { readModels } from "../catalog.js";
import { get } from "../client.js";
import { number, relative, time } from "../format.js";
import { Answered, Badge, CodeButton, CodePanel, Empty, Heading, useAnswer } from "../parts.js";
import { html } from "../preact.js";
import { snippets } from "../snippets.js";

export const TONES = { ready: "good", fresh: "good", stale: "warn", missing: "bad" };

export function CollectionsView() {
  const models = useAnswer((signal) => readModels(signal), []);
  const rejected = useAnswer((signal) => get("/v1/rejected", {}, signal).catch(() => ({ items: [], available: false })), []);
  const branch = place.value.query.get("branch");
  return html`<${Heading} title="Collections"><${CodeButton} /><//>
    <${CodePanel} snippet=${snippets.models()} />
    ${branch ? html`<p class="notice above">You are on the branch <b>${branch}</b>, which contains only models in a space. <a href=${here({ branch: null })}>Go to main</a> for the others. Counts are for main.</p>` : null}
    <${Answered} answer=${models} lines=${5}>${(items) => html`<${Models} items=${items} rejected=${rejected.value} branch=${branch} />`}<//>`;
}

function Models({ items, rejected, branch }) {
  if (!items.length)
    return html`<${Empty} title="No models yet">Push a schema: <code>worm push schema.json</code>, or <code>db.push()</code> in Python.<//>`;
  return html`<div class="scroll" role="region" aria-label="Collections" tabindex="0"><table class="list cards">
    <thead><tr>
      <th scope="col">Model</th><th scope="col" class="number">Documents</th><th scope="col">Table</th><th scope="col">Updated</th>
      <th scope="col">Indexes</th><th scope="col">Keeps</th><th scope="col">Rejected</th>
    </tr></thead>
    <tbody>${items.map((one) => html`<${Model} key=${one.name} model=${one} rejected=${rejected} branch=${branch} />`)}</tbody>
  </table></div>`;
}

function Model({ model, rejected, branch }) {
  const letters = (rejected?.items ?? []).filter((letter) => letter.model === model.name).length;
  const isElsewhere = Boolean(branch) && !model.space;
  const state = model.table?.state ?? "none";
  const keeps = [
    model.oplog && "history",
    model.softDelete && "trash",
    model.space && `space ${model.space}`,
    model.mode !== "readwrite" && model.mode,
  ].filter(Boolean);
  return html`<tr class=${isElsewhere ? "elsewhere" : ""}>
    <th scope="row">${
      isElsewhere
        ? html`<span aria-disabled="true">${model.name}</span> <span class="tag" title=${`${model.name} is not in a space, so it is not on the branch ${branch}`}>only on main</span>`
        : html`<a href=${reading.table(model.name)}>${model.name}</a>`
    }<div class="path">${model.path}</div></th>
    <td class="number" data-title="Documents">${model.count === null || model.count === undefined ? "–" : number(model.count)}</td>
    <td data-title="Table"><${Badge} tone=${TONES[state]}>${state}<//></td>
    <td data-title="Updated">${model.table?.updatedAt ? html`<time datetime=${model.table.updatedAt} title=${time(model.table.updatedAt)}>${relative(model.table.updatedAt)}</time>` : html`<span class="muted">–</span>`}</td>
    <td class="wrap" data-title="Indexes">${model.indexes?.length ? model.indexes.map((index) => html`<span class="tag" key=${index.name} title=${`${index.name}: ${index.type}`}>${index.field}${index.unique ? " · unique" : ""}</span> `) : html`<span class="muted">none</span>`}</td>
    <td class="wrap" data-title="Keeps">${keeps.length ? keeps.map((text) => html`<span class="tag" key=${text}>${text}</span> `) : html`<span class="muted">–</span>`}</td>
    <td data-title="Rejected"><${Letters} sum=${letters} isKnown=${rejected?.available !== false} /></td>
  </tr>`;
}

function Letters({ sum, isKnown }) {
  if (sum) return html`<a href=${address(["health"])}><${Badge} tone="bad">${sum}<//></a>`;
  if (isKnown) return html`<span class="muted">none</span>`;
  return html`<span class="muted" title="Unknown: no dead-letter queue can be read from here. See Health.">–</span>`;
}
