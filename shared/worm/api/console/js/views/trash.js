// Deleted documents that can come back, and how long they can.
import { go, here, place, reading } from "../address.js";
import { may, readModels } from "../catalog.js";
import { call, get, path } from "../client.js";
import { count, countdown, time } from "../format.js";
import {
  Answered,
  Badge,
  CodeButton,
  CodePanel,
  Confirm,
  Empty,
  Heading,
  ProblemBox,
  tell,
  useAnswer,
  useNow,
} from "../parts.js";
import { html, useState } from "../preact.js";
import { snippets } from "../snippets.js";

const LIMIT = 1000;
const SOON_MILLISECONDS = 3 * 86_400_000;

export function TrashView() {
  const { query } = place.value;
  const model = query.get("model") ?? "";
  const branch = query.get("branch");
  const answer = useAnswer((signal) => get("/v1/trash", { model, branch, limit: LIMIT }, signal), [model, branch]);
  const models = useAnswer((signal) => readModels(signal), []);
  const names = (models.value ?? []).filter((one) => one.softDelete).map((one) => one.name);
  return html`<${Heading} title="Trash">
      <label class="inline"><span>Model</span> <select value=${model} onChange=${(event) => go(here({ model: event.target.value || null }))}>
        <option value="">all</option>${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select></label>
      <${CodeButton} />
    <//>
    <${CodePanel} snippet=${snippets.trash({ model, branch })} />
    <${Answered} answer=${answer} lines=${4}>${({ items, cursor }) =>
      items.length
        ? html`<${Deleted} items=${items} isCut=${Boolean(cursor)} branch=${branch} reload=${answer.reload} />`
        : html`<${Empty} title="The trash is empty">Deleted documents of models with <code>softDelete</code> stay here until they expire.<//>`}<//>`;
}

function Deleted({ items, isCut, branch, reload }) {
  const now = useNow(1000);
  const [problem, setProblem] = useState(null);
  const [purging, setPurging] = useState(null);
  const target = (one, ...rest) => path("v1", "trash", one.model, one.id, ...rest);
  const restore = async (one) => {
    setProblem(null);
    try {
      await call("POST", target(one, "restore"), {
        query: { branch },
        headers: { "Idempotency-Key": crypto.randomUUID() },
        body: {},
      });
      tell(`${one.id} was restored`);
      go(reading.document(one.model, one.id));
    } catch (error) {
      setProblem(error);
    }
  };
  const purge = async () => {
    await call("DELETE", target(purging), { query: { branch } });
    tell(`${purging.id} was permanently deleted`);
    reload();
  };
  return html`<${ProblemBox} problem=${problem} />
    <p class="muted above">${isCut ? "The first " : ""}${count(items.length, "document")}</p>
    <div class="scroll" role="region" aria-label="Trash" tabindex="0"><table class="list">
      <thead><tr><th scope="col">Document</th><th scope="col">Deleted</th><th scope="col">By</th><th scope="col">Reason</th><th scope="col">Time left</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${items.map((one) => {
        const isSoon = one.expiresAt && Date.parse(one.expiresAt) - now < SOON_MILLISECONDS;
        return html`<tr key=${`${one.model}/${one.id}`}>
          <th scope="row"><a href=${reading.history(one.model, one.id)}>${one.id}</a><div class="path">${one.model}</div></th>
          <td><time datetime=${one.deletedAt}>${time(one.deletedAt)}</time></td>
          <td>${one.deletedBy ?? html`<span class="muted">unknown</span>`}</td>
          <td class="wrap">${one.reason ?? html`<span class="muted">–</span>`}</td>
          <td class="countdown">${one.expiresAt ? html`<${Badge} tone=${isSoon ? "warn" : ""}><time datetime=${one.expiresAt} title=${time(one.expiresAt)}>${countdown(one.expiresAt, now)}</time><//>` : "forever"}</td>
          <td class="row-actions">
            ${may("write") ? html`<button type="button" class="small" onClick=${() => restore(one)} aria-label=${`Restore ${one.id}`}>Restore</button>` : null}
            ${may("admin") && !branch ? html`<button type="button" class="small danger-quiet" onClick=${() => setPurging(one)} aria-label=${`Purge ${one.id}`}>Purge</button>` : null}
          </td>
        </tr>`;
      })}</tbody>
    </table></div>
    ${
      purging
        ? html`<${Confirm} title=${`Purge ${purging.id}?`} action="Purge" danger act=${purge} close=${() => setPurging(null)}>
          <p>This permanently deletes it from the trash. Its history is kept.</p><//>`
        : null
    }`;
}
