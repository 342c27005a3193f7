// The console begins here: token, shell, and the view that the address names.
import { address, base, go, here, leaving, place } from "./address.js";
import { about, branches, isPriced, loadAbout, loadBranches, readModel } from "./catalog.js";
import { forgetToken, Problem, refusal, setToken, shareToken, spent, takeTokenFromAddress, token } from "./client.js";
import { count, usd } from "./format.js";
import { announcement, Badge, Dialog, Empty, Heading, ProblemBox, toast, useAnswer, Waiting } from "./parts.js";
import { html, render, signal, useEffect, useState } from "./preact.js";
import { BranchesView } from "./views/branches.js";
import { CollectionsView } from "./views/collections.js";
import { DocumentView, NewDocumentView } from "./views/document.js";
import { ExplainView } from "./views/explain.js";
import { FeedView } from "./views/feed.js";
import { HealthView } from "./views/health.js";
import { HistoryView } from "./views/history.js";
import { TableView } from "./views/table.js";
import { TrashView } from "./views/trash.js";

const NAVIGATION = [
  ["", "Collections"],
  ["changes", "Changes"],
  ["trash", "Trash"],
  ["branches", "Branches"],
  ["health", "Health"],
];

function viewOf({ parts }) {
  const [first, model] = parts;
  if (parts.length === 0) return html`<${CollectionsView} />`;
  if (parts.length === 1 && first === "changes") return html`<${FeedView} />`;
  if (parts.length === 1 && first === "trash") return html`<${TrashView} />`;
  if (parts.length === 1 && first === "branches") return html`<${BranchesView} />`;
  if (parts.length === 1 && first === "health") return html`<${HealthView} />`;
  if (first !== "models" || parts.length < 2) return null;
  const view = viewOfModel(parts, model);
  return view && html`<${OnBranch} key=${model} name=${model} branch=${place.value.query.get("branch")}>${view}<//>`;
}

function viewOfModel(parts, model) {
  const [second, id, third] = parts.slice(2);
  if (parts.length === 2) return html`<${TableView} key=${model} name=${model} />`;
  if (parts.length === 3 && second === "explain") return html`<${ExplainView} key=${model} name=${model} />`;
  if (parts.length === 3 && second === "new") return html`<${NewDocumentView} key=${model} name=${model} />`;
  const branch = place.value.query.get("branch") ?? "";
  const key = `${model}/${id}/${branch}`;
  if (parts.length === 4 && second === "documents") return html`<${DocumentView} key=${key} name=${model} id=${id} />`;
  if (parts.length === 5 && second === "documents" && third === "history")
    return html`<${HistoryView} key=${key} name=${model} id=${id} />`;
  return null;
}

/** A branch has the models that are in a space. Of another one there is nothing to see there. */
function OnBranch({ name, branch, children }) {
  const model = useAnswer(async (signal) => (branch ? readModel(name, signal) : null), [name, branch]);
  if (!branch || model.problem) return children;
  if (!model.value) return html`<${Waiting} lines=${6} />`;
  if (model.value.space) return children;
  return html`<${Heading} title=${name} trail=${html`<a href=${address([])}>Collections</a>`} />
    <${Empty} title=${`${name} is not on the branch ${branch}`}>A branch contains only models that are in a space, and ${name} is not in one. Its documents are on main.<br />
      <a class="button primary" href=${here({ branch: null })}>Open it on main</a><//>`;
}

/** Asks before the user leaves unsaved changes. */
function Leaving() {
  const leave = leaving.value;
  if (!leave) return null;
  const stay = () => (leaving.value = null);
  const go = () => (stay(), leave());
  return html`<${Dialog} title="Leave without saving?" close=${stay}>
    <p>Your changes to this document are not saved yet.</p>
    <div class="dialog-foot">
      <button type="button" class="danger-quiet" onClick=${go}>Leave without saving</button>
      <button type="button" class="primary" onClick=${stay}>Stay</button>
    </div>
  <//>`;
}

function NotHere() {
  return html`<${Heading} title="Page not found" /><${Empty} title="There is no page at this address"><a href=${base}>All collections</a><//>`;
}

const theme = signal(document.documentElement.dataset.theme ?? "system");

function ThemeButton() {
  const next = { system: "light", light: "dark", dark: "system" }[theme.value];
  const choose = () => {
    theme.value = next;
    if (next === "system") {
      delete document.documentElement.dataset.theme;
      localStorage.removeItem("worm.theme");
    } else {
      document.documentElement.dataset.theme = next;
      localStorage.setItem("worm.theme", next);
    }
  };
  const icon = { system: "◐", light: "○", dark: "●" }[theme.value];
  return html`<button type="button" class="plain" onClick=${choose} title=${`Theme: ${theme.value}`} aria-label=${`Theme: ${theme.value}. Change to ${next}`}>${icon}</button>`;
}

/** The branch that everything is read from and written to. Only where there are branches. */
function BranchPicker() {
  const chosen = place.value.query.get("branch") ?? "";
  useEffect(() => void loadBranches().catch(() => {}), []);
  const names = branches.value.filter((one) => !one.isDeleted && one.name !== "main").map((one) => one.name);
  if (!names.length && !chosen) return null;
  if (chosen && !names.includes(chosen)) names.push(chosen);
  const choose = (event) => go(here({ branch: event.target.value || null, cursor: null, at: null, seq: null }));
  return html`<label class="branch-picker"><span>Branch</span>
    <select value=${chosen} onChange=${choose}>
      <option value="">main</option>
      ${names.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
    </select></label>`;
}

function TopBar() {
  const { parts } = place.value;
  const current = parts[0] === "models" ? "" : (parts[0] ?? "");
  return html`<header class="top">
    <a class="brand" href=${address([])}><img src=${`${base}icon.svg`} alt="" width="20" height="20" />S3WORM</a>
    <nav aria-label="Main" class="main-nav">
      ${NAVIGATION.map(
        ([part, title]) =>
          html`<a key=${part} href=${address(part ? [part] : [])} aria-current=${part === current ? "page" : null}>${title}</a>`,
      )}
    </nav>
    <div class="top-right">
      <${BranchPicker} />
      ${about.value?.mode === "readonly" ? html`<${Badge} tone="warn">read-only<//>` : null}
      <${ThemeButton} />
      <${Account} />
    </div>
  </header>`;
}

function Account() {
  const [isOpen, setOpen] = useState(false);
  const { identity, url, version } = about.value ?? {};
  return html`<button type="button" class="plain account" onClick=${() => setOpen(true)} title=${identity?.actor}><span>${identity?.actor ?? "…"}</span></button>
    ${
      isOpen
        ? html`<${Dialog} title="This session" close=${() => setOpen(false)}>
          <dl class="facts stacked">
            <div><dt>Signed in as</dt><dd><code>${identity?.actor}</code></dd></div>
            <div><dt>Permissions</dt><dd>${identity?.scopes?.join(", ")}</dd></div>
            ${url ? html`<div><dt>Database</dt><dd><code>${url}</code></dd></div>` : null}
            <div><dt>Version</dt><dd>${version}</dd></div>
            <div><dt>API</dt><dd><a href="/openapi.json" target="_blank" rel="noreferrer">openapi.json</a></dd></div>
          </dl>
          <div class="dialog-foot"><button type="button" onClick=${forgetToken}>Forget the token</button></div>
        <//>`
        : null
    }`;
}

/** What the page has cost: discreet, and in full on a click. */
function CostBar() {
  const [isOpen, setOpen] = useState(false);
  const { requests, usd: sum, calls } = spent.value;
  return html`<footer class="cost">
    <button type="button" class="plain" aria-expanded=${isOpen} onClick=${() => setOpen(!isOpen)}>
      <span data-total-requests=${requests}>${count(requests, isPriced() ? "S3 request" : "request")}</span>${isPriced() ? html` · <span data-total-usd=${sum}>${usd(sum)}</span>` : null}
      <span class="muted"> on this page</span>
    </button>
    ${
      isOpen
        ? html`<div class="calls" role="region" aria-label="Calls made by this page" tabindex="0"><table>
          <thead><tr><th scope="col">Call</th><th scope="col">Status</th><th scope="col" class="number">Requests</th>${isPriced() ? html`<th scope="col" class="number">USD</th>` : null}<th scope="col" class="number">ms</th></tr></thead>
          <tbody>${calls.map(
            (one, index) => html`<tr key=${calls.length - index}>
              <td><code>${one.method} ${one.path}</code></td><td>${one.status}</td><td class="number">${one.requests}</td>
              ${isPriced() ? html`<td class="number">${usd(one.usd)}</td>` : null}<td class="number">${Math.round(one.milliseconds)}</td></tr>`,
          )}</tbody></table></div>`
        : null
    }
  </footer>`;
}

const TOKEN_HINT =
  "Copy it again from the link that `worm serve` printed: it is the part after #token=. Each start creates a new token.";

function TokenForm() {
  const [text, setText] = useState("");
  const submit = (event) => {
    event.preventDefault();
    setToken(text.trim());
  };
  return html`<main class="sign-in" id="main">
    <form onSubmit=${submit}>
      <h1><img src=${`${base}icon.svg`} alt="" width="24" height="24" /> S3WORM</h1>
      <${ProblemBox} problem=${refusal.value && new Problem(refusal.value.status, { ...refusal.value.body, hint: TOKEN_HINT })} />
      <label class="field"><span>Token</span>
        <input type="password" autocomplete="off" required value=${text} onInput=${(event) => setText(event.target.value)} autofocus /></label>
      <p class="muted"><code>worm serve</code> prints a link that contains the token. Only open tabs of this console keep it: it is forgotten when you close them.</p>
      <button type="submit" class="primary">Continue</button>
    </form>
  </main>`;
}

function App() {
  const [problem, setProblem] = useState(null);
  const [turn, setTurn] = useState(0);
  const given = token.value;
  useEffect(() => {
    about.value = null;
    setProblem(null);
    if (given) loadAbout().catch((error) => error.status === 401 || setProblem(error));
  }, [given, turn]);
  if (!given) return html`<${TokenForm} />`;
  if (problem)
    return html`<main class="sign-in" id="main"><${ProblemBox} problem=${problem} retry=${() => setTurn(turn + 1)} /></main>`;
  if (!about.value) return html`<main class="sign-in" id="main" aria-busy="true"><${Waiting} lines=${3} /></main>`;
  return html`<a class="skip" href="#main">Skip to content</a>
    <${TopBar} />
    <main id="main" tabindex="-1">${viewOf(place.value) ?? html`<${NotHere} />`}</main>
    <${CostBar} />
    <${Leaving} />
    ${toast.value ? html`<div class="toast" key=${toast.value.at} aria-hidden="true">${toast.value.text}</div>` : null}
    <div class="unseen" role="status" aria-live="polite">${announcement.value}</div>`;
}

takeTokenFromAddress();
shareToken();
if (!location.pathname.startsWith(base)) go(base + location.search, { replace: true });
render(html`<${App} />`, document.getElementById("app"));
