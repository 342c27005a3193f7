// Branches as a graph; what one would bring into another, by model; and the merge, by a policy or document by document.
import { address, go, here, place, reading } from "../address.js";
import { branches, loadBranches, may } from "../catalog.js";
import { call, get, path, post, readDocument } from "../client.js";
import { count } from "../format.js";
import {
  Answered,
  Badge,
  CodeButton,
  CodePanel,
  Confirm,
  Dialog,
  DiffValue,
  Empty,
  Heading,
  ProblemBox,
  ReasonField,
  tell,
  useAnswer,
} from "../parts.js";
import { html, useState } from "../preact.js";
import { snippets } from "../snippets.js";
import { patch } from "../changes.js";

const ROW_PIXELS = 44;
const POLICIES = [
  ["fail", "Stop without merging"],
  ["choose", "Choose for each document"],
  ["fields", "Combine fields; stop if both changed a field"],
  ["fields-ours", "Combine fields; if both changed a field, keep the target's"],
  ["fields-theirs", "Combine fields; if both changed a field, take the branch's"],
  ["ours", "Keep the target's document"],
  ["theirs", "Take the branch's document"],
];

export function BranchesView() {
  const { query } = place.value;
  const compare = query.get("compare");
  const into = query.get("into") ?? "main";
  const answer = useAnswer(async () => (await loadBranches(), { items: branches.value }), []);
  const [isCreating, setCreating] = useState(false);
  const snippet = compare ? snippets.compared({ branch: compare, into }) : snippets.branches();
  return html`<${Heading} title="Branches">
      <${CodeButton} />
      ${may("write") && answer.value?.items?.length ? html`<button type="button" class="primary" onClick=${() => setCreating(true)}>New branch</button>` : null}
    <//>
    <${CodePanel} snippet=${snippet} />
    <${Answered} answer=${answer} lines=${4}>${({ items }) =>
      items.length
        ? html`<${Graph} items=${items} compare=${compare} into=${into} reload=${answer.reload} />
            ${compare ? html`<${Comparison} key=${`${compare}/${into}`} items=${items} branch=${compare} into=${into} reload=${answer.reload} />` : null}
            ${isCreating ? html`<${Creation} items=${items} close=${() => setCreating(false)} reload=${answer.reload} />` : null}`
        : html`<${Empty} title="No branches">Branches are for models in a space. To put a model in a space, set <code>space</code> in its settings.<//>`}<//>`;
}

// Graph

/** Parents before their branches, each branch on a line of its own. */
function ordered(items) {
  const below = (parent) =>
    items.filter((one) => (one.parent ?? null) === parent).flatMap((one) => [one, ...below(one.name)]);
  const found = below(null);
  return [...found, ...items.filter((one) => !found.includes(one))];
}

function Graph({ items, compare, into, reload }) {
  const [problem, setProblem] = useState(null);
  const [deleting, setDeleting] = useState(null);
  const rows = ordered(items);
  const undelete = async (one) => {
    try {
      await post(path("v1", "branches", one.name, "undelete"), {});
      tell(`${one.name} was undeleted`);
      reload();
    } catch (error) {
      setProblem(error);
    }
  };
  const remove = async () => {
    await call("DELETE", path("v1", "branches", deleting.name));
    tell(`${deleting.name} was deleted`);
    reload();
  };
  return html`<${ProblemBox} problem=${problem} />
    <div class="scroll" role="region" aria-label="Branches" tabindex="0"><table class="list branches">
      <thead><tr><th scope="col">Branch</th><th scope="col"><span class="unseen">Graph</span></th><th scope="col">From</th><th scope="col" class="number">Newest commit</th><th scope="col"><span class="unseen">Actions</span></th></tr></thead>
      <tbody>${rows.map(
        (
          one,
          index,
        ) => html`<tr key=${one.name} class=${one.isDeleted ? "gone" : ""} aria-current=${one.name === compare ? "true" : null}>
          <th scope="row">${one.name}${one.isDeleted ? html` <${Badge}>deleted<//>` : null}</th>
          ${index === 0 ? html`<td rowspan=${rows.length} class="graph"><${Lanes} rows=${rows} /></td>` : null}
          <td>${one.parent ? html`${one.parent}${one.forkSeq !== null && one.forkSeq !== undefined ? html` <span class="muted">at ${one.forkSeq}</span>` : null}` : html`<span class="muted">–</span>`}</td>
          <td class="number">${one.head ?? "–"}${isFresh(one) ? html`<div class="path">0 changes</div>` : null}</td>
          <td class="row-actions">
            ${
              one.name === "main"
                ? null
                : html`${one.isDeleted ? null : html`<a class="button small" href=${address([], { branch: one.name })}>Open</a>`}
                  <a class="button small" href=${here({ compare: one.name, into: one.name === into ? null : into })}>Compare</a>
                  ${one.isDeleted && may("admin") ? html`<button type="button" class="small" onClick=${() => undelete(one)}>Undelete</button>` : null}
                  ${!one.isDeleted && may("admin") ? html`<button type="button" class="small danger-quiet" aria-label=${`Delete ${one.name}`} onClick=${() => setDeleting(one)}>Delete</button>` : null}`
            }
          </td>
        </tr>`,
      )}</tbody>
    </table></div>
    ${
      deleting
        ? html`<${Confirm} title=${`Delete ${deleting.name}?`} action="Delete" danger act=${remove} close=${() => setDeleting(null)}>
          <p>It will not accept any more commits. You can still read it, and you can undelete it.</p><//>`
        : null
    }`;
}

/** Nothing was committed after the commit that made it. */
const isFresh = (one) => Boolean(one.parent) && one.head === one.createdSeq;

/** Lines stay thin and dots round at any width: the drawing is stretched, strokes are not. */
function Lanes({ rows }) {
  // The numbers of commits are shared: a branch can begin at one that is after the newest of its parent.
  const forkOf = (one) => Math.min(one.forkSeq ?? 0, rows.find((other) => other.name === one.parent)?.head ?? Infinity);
  const numbers = rows.flatMap((one) => [one.parent ? forkOf(one) : null, isFresh(one) ? null : one.head]).filter((one) => typeof one === "number");
  const most = Math.max(1, ...numbers);
  const least = Math.min(most, ...numbers);
  const x = (seq) => 14 + (((seq ?? least) - least) / Math.max(1, most - least)) * 79;
  const y = (index) => index * ROW_PIXELS + ROW_PIXELS / 2;
  const height = rows.length * ROW_PIXELS;
  return html`<svg viewBox=${`0 0 100 ${height}`} preserveAspectRatio="none" height=${height} aria-hidden="true">
    ${rows.map((one, index) => {
      const parent = rows.findIndex((other) => other.name === one.parent);
      const start = one.parent ? x(forkOf(one)) : 0;
      const head = isFresh(one) ? start : x(one.head);
      const turn = isFresh(one) ? start : Math.min(start + 5, Math.max(head, start + 1));
      const line =
        parent < 0
          ? `M 0 ${y(index)} H ${head}`
          : `M ${start} ${y(parent)} C ${start} ${y(index)} ${start} ${y(index)} ${turn} ${y(index)} H ${Math.max(head, turn)}`;
      return html`<g key=${one.name} class=${`lane lane-${index % 5} ${one.isDeleted ? "gone" : ""}`}>
        <path d=${line} /><path class="dot" d=${`M ${parent < 0 ? head : Math.max(head, turn)} ${y(index)} h 0.001`} />
      </g>`;
    })}
  </svg>`;
}

function Creation({ items, close, reload }) {
  const [name, setName] = useState("");
  const [parent, setParent] = useState("main");
  const [at, setAt] = useState("");
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    try {
      const moment = at.trim() === "" ? {} : { at: /^\d+$/.test(at.trim()) ? Number(at.trim()) : at.trim() };
      await post("/v1/branches", { name: name.trim(), parent, ...moment });
      tell(`Branch ${name.trim()} was created`);
      close();
      reload();
      go(here({ compare: name.trim(), into: parent === "main" ? null : parent }));
    } catch (error) {
      setProblem(error);
    }
  };
  return html`<${Dialog} title="New branch" close=${close}>
    <form onSubmit=${submit}>
      <label class="field"><span>Name</span><input type="text" required value=${name} onInput=${(event) => setName(event.target.value)} /></label>
      <label class="field"><span>From</span><select value=${parent} onChange=${(event) => setParent(event.target.value)}>${items.filter((one) => !one.isDeleted).map((one) => html`<option key=${one.name} value=${one.name}>${one.name}</option>`)}</select></label>
      <label class="field"><span>As of <small>a commit or a time; leave empty for the current state</small></span><input type="text" value=${at} placeholder="now" onInput=${(event) => setAt(event.target.value)} /></label>
      <${ProblemBox} problem=${problem} />
      <div class="dialog-foot"><button type="button" onClick=${close}>Cancel</button><button type="submit" class="primary">Create</button></div>
    </form>
  <//>`;
}

// Compare and merge

const nameOf = (change) => `${change.model}/${change.id}`;

function Comparison({ items, branch, into, reload }) {
  const answer = useAnswer((signal) => get(path("v1", "branches", branch, "diff"), { into }, signal), [branch, into]);
  const [policy, setPolicy] = useState("fail");
  const [choices, setChoices] = useState({});
  const targets = items.filter((one) => one.name !== branch && !one.isDeleted).map((one) => one.name);
  const choose = (change, side) => setChoices({ ...choices, [nameOf(change)]: side });
  const again = () => (answer.reload(), reload());
  return html`<section class="comparison" aria-label=${`Changes of ${branch}`}>
    <h2><span>Changes that <code>${branch}</code> would bring into</span>
      <label><span class="unseen">Target</span><select value=${into} onChange=${(event) => go(here({ into: event.target.value === "main" ? null : event.target.value }))}>${targets.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</select></label></h2>
    <${Answered} answer=${answer} lines=${4}>${({ items: changes }) =>
      changes.length
        ? html`<${ByModel} changes=${changes} branch=${branch} into=${into} choices=${policy === "choose" ? choices : null} choose=${choose} />
            ${may("write") ? html`<${Merge} changes=${changes} branch=${branch} into=${into} policy=${policy} setPolicy=${setPolicy} choices=${choices} again=${again} />` : null}`
        : html`<${Empty} title="Nothing to merge">${into} already has all changes of ${branch}.<//>`}<//>
  </section>`;
}

const CHANGE_TONES = { created: "good", updated: "", deleted: "bad" };

function ByModel({ changes, branch, into, choices, choose }) {
  const models = [...new Set(changes.map((one) => one.model))];
  return models.map((model) => {
    const own = changes.filter((one) => one.model === model);
    return html`<section key=${model} aria-label=${model}>
      <h3>${model} <span class="muted">${count(own.length, "document")}</span></h3>
      ${own.map(
        (
          change,
        ) => html`<details key=${change.id} class="change" open=${change.isConflict || (own.length <= 5 && change.change !== "deleted")}>
          <summary><${Badge} tone=${CHANGE_TONES[change.change]}>${change.change}<//> <code>${change.id}</code> ${change.isConflict ? html`<${Badge} tone="bad">changed on both sides<//>` : null} <span class="muted">${count(change.fields?.length ?? 0, "field")}</span></summary>
          <div class="scroll" role="region" aria-label=${`Fields of ${change.id}`} tabindex="0"><table class="diff">
            <thead><tr><th scope="col">Field</th><th scope="col">${into}</th><th scope="col">${branch}</th></tr></thead>
            <tbody>${(change.fields ?? []).map(
              (field) => html`<tr key=${field.path}><th scope="row"><code>${field.path}</code></th>
                <${Side} value=${field.from ?? undefined} tone="removed" sign="−" /><${Side} value=${field.to ?? undefined} tone="added" sign="+" /></tr>`,
            )}</tbody>
          </table></div>
          ${
            choices && change.isConflict
              ? html`<fieldset class="choice"><legend>Keep</legend>
                ${[
                  ["into", into],
                  ["branch", branch],
                ].map(
                  ([side, name]) =>
                    html`<label key=${side}><input type="radio" name=${nameOf(change)} checked=${choices[nameOf(change)] === side} onChange=${() => choose(change, side)} /> the version on ${name}</label>`,
                )}</fieldset>`
              : null
          }
          <p class="links"><a href=${reading.document(model, change.id, { branch: branch === "main" ? null : branch, compare: null, into: null })}>on ${branch}</a> · <a href=${reading.document(model, change.id, { branch: into === "main" ? null : into, compare: null, into: null })}>on ${into}</a></p>
        </details>`,
      )}
    </section>`;
  });
}

function Side({ value, tone, sign }) {
  return html`<td class=${value === undefined ? "absent" : tone}><${DiffValue} value=${value} sign=${sign} /></td>`;
}

function Merge({ changes, branch, into, policy, setPolicy, choices, again }) {
  const [problem, setProblem] = useState(null);
  const [result, setResult] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [checks, setChecks] = useState(true);
  const [reason, setReason] = useState("");
  const conflicts = changes.filter((one) => one.isConflict);
  const open = policy === "choose" ? conflicts.filter((one) => !choices[nameOf(one)]).length : 0;
  const run = async (dryRun) => {
    setBusy(true);
    setProblem(null);
    setResult(null);
    try {
      const wanted = { reason, checkReferences: checks };
      if (policy === "choose" && !dryRun) await resolve({ conflicts, branch, into, choices, reason });
      await merge(branch, into, policy === "choose" ? (dryRun ? "ours" : "fail") : policy, { ...wanted, dryRun });
      const text = dryRun
        ? `The merge would succeed: ${count(changes.length, "document")}`
        : `${branch} was merged into ${into}`;
      setResult(text);
      tell(text);
      if (!dryRun) again();
    } catch (error) {
      setProblem(error);
    } finally {
      setBusy(false);
    }
  };
  return html`<form class="merge" onSubmit=${(event) => (event.preventDefault(), run(false))}>
    <h3>Merge ${count(changes.length, "document")} into ${into}</h3>
    ${conflicts.length ? html`<p>${count(conflicts.length, "document")} changed on both sides.</p>` : null}
    <label class="field"><span>If both sides changed a document</span><select value=${policy} onChange=${(event) => setPolicy(event.target.value)}>${POLICIES.map(([name, title]) => html`<option key=${name} value=${name}>${title}</option>`)}</select></label>
    ${policy === "choose" && conflicts.length ? html`<p class="muted">First, ${into} is merged into ${branch} with your choices. Then ${branch} is merged into ${into}.</p>` : null}
    <label class="check"><input type="checkbox" checked=${checks} onChange=${(event) => setChecks(event.target.checked)} /> Check references</label>
    <${ReasonField} value=${reason} set=${setReason} />
    <${ProblemBox} problem=${problem} />
    ${result ? html`<p class="notice good" role="status">${result}</p>` : null}
    <div class="save-bar">
      <span class="muted">${open ? `${count(open, "document")} left to decide` : ""}</span>
      <button type="button" disabled=${isBusy} onClick=${() => run(true)}>Try it (dry run)</button>
      <button type="submit" class="primary" disabled=${isBusy || open > 0}>Merge</button>
    </div>
  </form>`;
}

const merge = (branch, into, policy, { reason, dryRun = false, checkReferences = true }) =>
  post(path("v1", "branches", branch, "merge"), { into, policy, dryRun, checkReferences }, { query: { reason } });

/**
 * Choices document by document. The target is merged into the branch, which keeps its own where both changed; then each
 * document for which the target was chosen is saved on the branch as the target has it. After that nothing is in conflict.
 */
async function resolve({ conflicts, branch, into, choices, reason }) {
  if (!conflicts.length) return;
  await merge(into, branch, "ours", { reason });
  for (const change of conflicts.filter((one) => choices[nameOf(one)] === "into")) {
    const target = path("v1", "models", change.model, "documents", change.id);
    const [kept, own] = await Promise.all([stored(target, into), stored(target, branch)]);
    const query = { branch: nameInQuery(branch), reason };
    if (!kept && own) await call("DELETE", target, { query, headers: { "If-Match": own.etag } });
    else if (kept && own) {
      const body = patch(own.document, kept.document);
      if (body.length)
        await call("PATCH", target, {
          query,
          headers: { "If-Match": own.etag },
          body,
          type: "application/json-patch+json",
        });
    } else if (kept) await call("PUT", target, { query, headers: { "If-None-Match": "*" }, body: kept.document });
  }
}

const nameInQuery = (branch) => (branch === "main" ? null : branch);

async function stored(target, branch) {
  try {
    return await readDocument("GET", target, { query: { branch: nameInQuery(branch) } });
  } catch (problem) {
    if (problem.status === 404) return null;
    throw problem;
  }
}
