// What several views are made of: answers that are waited for, problems, dialogs, code, differences.
import { go, hasMoved, here, place } from "./address.js";
import { changes, label, SYSTEM_FIELDS } from "./changes.js";
import { cell, pretty } from "./format.js";
import { html, signal, useEffect, useId, useLayoutEffect, useRef, useState } from "./preact.js";

/** Read out by screen readers; nobody else sees it. */
export const announcement = signal("");
export const announce = (text) => (announcement.value = text);

/** The same for everybody, for a moment: what was done. */
export const toast = signal(null);
const TOAST_MILLISECONDS = 4000;

export function tell(text) {
  announce(text);
  const own = { text, at: Date.now() };
  toast.value = own;
  setTimeout(() => toast.value === own && (toast.value = null), TOAST_MILLISECONDS);
}

/** `{value, problem, isLoading, reload, set}` of an answer. The last value stays while the next one is on its way. */
export function useAnswer(load, inputs) {
  const [state, setState] = useState({ isLoading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    const aborter = new AbortController();
    setState((last) => ({ ...last, isLoading: true }));
    Promise.resolve()
      .then(() => load(aborter.signal))
      .then((value) => aborter.signal.aborted || setState({ value, isLoading: false }))
      .catch((problem) => {
        if (problem.name !== "AbortError" && !aborter.signal.aborted) setState({ problem, isLoading: false });
      });
    return () => aborter.abort();
  }, [...inputs, turn]);
  return { ...state, reload: () => setTurn((last) => last + 1), set: (value) => setState({ value, isLoading: false }) };
}

/** Now, again every second (or so). */
export function useNow(everyMilliseconds = 1000) {
  const [now, setNow] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), everyMilliseconds);
    return () => clearInterval(timer);
  }, [everyMilliseconds]);
  return now;
}

const SHOWN_MEMBERS = [
  ["field", "Field"],
  ["holder", "Held by"],
  ["key", "Key"],
  ["expected", "Expected"],
  ["found", "Found"],
];

/** A problem as the server says it. */
export function ProblemBox({ problem, retry, children }) {
  if (!problem) return null;
  const body = problem.body ?? { title: problem.message };
  const facts = SHOWN_MEMBERS.filter(
    ([name]) => body[name] !== undefined && body[name] !== null && !(name === "field" && body.errors?.length > 1),
  );
  const title = body.title ?? problem.message;
  return html`<div class="problem" role="alert">
    <p class="problem-title">${title}${problem.status ? html` <span class="tag">${problem.status}</span>` : null}</p>
    ${body.detail && body.detail !== title && !(body.errors?.length > 1) ? html`<p>${body.detail}</p>` : null}
    ${
      facts.length
        ? html`<dl class="facts">${facts.map(([name, title]) => html`<div key=${name}><dt>${title}</dt><dd><code>${cell(body[name])}</code></dd></div>`)}</dl>`
        : null
    }
    ${body.errors?.length > 1 ? html`<ul class="mistakes">${body.errors.map((one, index) => html`<li key=${index}>${one.field ? html`<code>${one.field}</code> ` : null}${one.detail}</li>`)}</ul>` : null}
    ${body.mayHaveLanded ? html`<p>The write may have succeeded. Check before you try again.</p>` : null}
    ${body.hint ? html`<p class="hint"><b>Hint</b> ${body.hint}</p>` : null}
    ${retry ? html`<button type="button" onClick=${retry}>Try again</button>` : null} ${children}
  </div>`;
}

/** What is there while an answer is on its way: of the size of what will come. */
export function Waiting({ lines = 6 }) {
  return html`<div class="waiting" aria-hidden="true">${Array.from({ length: lines }, (_, index) => html`<div key=${index} class="bone"></div>`)}</div>`;
}

/** A value that is waited for: a problem, bones, or what `children` make of it. */
export function Answered({ answer, lines, children }) {
  if (answer.problem) return html`<${ProblemBox} problem=${answer.problem} retry=${answer.reload} />`;
  if (answer.value === undefined) return html`<${Waiting} lines=${lines} />`;
  return children(answer.value);
}

export function Empty({ title, children }) {
  return html`<div class="empty"><p class="empty-title">${title}</p>${children ? html`<p>${children}</p>` : null}</div>`;
}

/** The view's heading. It takes the focus when the reader comes from another view, so that it is read first. */
export function Heading({ title, trail, children }) {
  const heading = useRef();
  const { parts } = place.value;
  const where = parts.join("/");
  useEffect(() => {
    document.title = `${title} · S3WORM`;
    const isLost = document.activeElement === document.body || !document.contains(document.activeElement);
    if (hasMoved && isLost) heading.current?.focus();
  }, [where, title]);
  return html`<div class="heading">
    ${trail ? html`<nav aria-label="Path" class="trail">${trail}</nav>` : null}
    <h1 tabindex="-1" ref=${heading}>${title}</h1>
    <div class="actions">${children}</div>
  </div>`;
}

export function Dialog({ title, close, children, wide = false }) {
  const dialog = useRef();
  const id = useId();
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${dialog} class=${wide ? "wide" : ""} aria-labelledby=${id} onCancel=${(event) => (event.preventDefault(), close())}>
    <div class="dialog-head">
      <h2 id=${id}>${title}</h2>
      <button type="button" class="plain" aria-label="Close" onClick=${close}>×</button>
    </div>
    ${children}
  </dialog>`;
}

/** A button that opens a list below it. Escape and a click elsewhere close it. */
export function Menu({ title, children }) {
  const menu = useRef();
  useEffect(() => {
    const leave = (event) => {
      if (!menu.current?.open) return;
      if (event.type === "keydown" ? event.key !== "Escape" : menu.current.contains(event.target)) return;
      menu.current.open = false;
      if (event.type === "keydown") menu.current.querySelector("summary").focus();
    };
    document.addEventListener("click", leave);
    document.addEventListener("keydown", leave);
    return () => {
      document.removeEventListener("click", leave);
      document.removeEventListener("keydown", leave);
    };
  }, []);
  return html`<details class="menu" ref=${menu}><summary class="button">${title}</summary><div class="menu-body" role="group" aria-label=${title}>${children}</div></details>`;
}

/** A question before something that cannot be undone by a click. `act(reason)` may fail: the dialog shows why. */
export function Confirm({ title, action, act, close, danger = false, asksReason = false, children }) {
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await act(reason);
      close();
    } catch (error) {
      setProblem(error);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} close=${close}>
    <form onSubmit=${submit}>
      <div class="prose">${children}</div>
      ${asksReason ? html`<${ReasonField} value=${reason} set=${setReason} />` : null}
      <${ProblemBox} problem=${problem} />
      <div class="dialog-foot">
        <button type="button" onClick=${close}>Cancel</button>
        <button type="submit" class=${danger ? "danger" : "primary"} disabled=${isBusy}>${action}</button>
      </div>
    </form>
  <//>`;
}

export function ReasonField({ value, set }) {
  return html`<label class="field"><span>Reason <small>optional, kept in the history</small></span>
    <input type="text" value=${value} maxlength="500" onInput=${(event) => set(event.target.value)} /></label>`;
}

/** On a narrow screen the reason would cover the form: there it is folded. */
export function FoldedReason(props) {
  const [isOpen] = useState(() => matchMedia("(min-width: 761px)").matches);
  return html`<details class="folded" open=${isOpen}><summary>Reason</summary><${ReasonField} ...${props} /></details>`;
}

export function CopyButton({ text, label: name = "Copy" }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    setDone(true);
    announce("Copied");
    setTimeout(() => setDone(false), 1500);
  };
  return html`<button type="button" class="small" onClick=${copy}>${isDone ? "Copied" : name}</button>`;
}

const LANGUAGES = [
  ["curl", "curl"],
  ["python", "Python"],
  ["cli", "CLI"],
];

/** The button of every view that shows it as code; which language is in the address. */
export function CodeButton() {
  const isOpen = place.value.query.has("code");
  return html`<button type="button" aria-expanded=${isOpen} onClick=${() => go(here({ code: isOpen ? null : "curl" }), { replace: true })}>
    <span class="mono" aria-hidden="true">{ }</span> As code
  </button>`;
}

/** `snippet` is null as long as something is missing in it: who copies it too early must not get half of it. */
export function CodePanel({ snippet }) {
  const chosen = place.value.query.get("code");
  if (!chosen || !snippet) return null;
  const known = LANGUAGES.filter(([name]) => snippet[name]);
  const language = known.some(([name]) => name === chosen) ? chosen : "curl";
  return html`<section class="code-panel" aria-label="This view as code">
    <div class="code-head">
      <div role="group" aria-label="Language" class="segments">
        ${known.map(
          ([name, title]) =>
            html`<button key=${name} type="button" aria-pressed=${name === language} onClick=${() => go(here({ code: name }), { replace: true })}>${title}</button>`,
        )}
      </div>
      <${CopyButton} text=${snippet[language]} />
      <button type="button" class="plain" aria-label="Close the code" onClick=${() => go(here({ code: null }), { replace: true })}>×</button>
    </div>
    <pre tabindex="0" data-code=${language}>${snippet[language]}</pre>
    ${language === "curl" ? html`<p class="code-note"><code>$WORM_TOKEN</code> is the token: the part after <code>#token=</code> in the link that <code>worm serve</code> printed. Set it once: <code>export WORM_TOKEN=…</code></p>` : null}
  </section>`;
}

export function Badge({ tone = "", children }) {
  return html`<span class=${`badge ${tone}`}>${children}</span>`;
}

/** Two documents side by side, by field. null stands for a document that was not there. */
export function Differences({ from, to, fromTitle, toTitle, all = false }) {
  const rows = changes(from ?? {}, to ?? {}).filter(
    ({ path }) => all || !(path.length === 1 && SYSTEM_FIELDS.has(path[0])),
  );
  if (!rows.length) return html`<${Empty} title="No differences" />`;
  return html`<div class="scroll" role="region" aria-label="Fields that differ" tabindex="0"><table class="diff">
    <thead><tr><th scope="col">Field</th><th scope="col">${fromTitle}</th><th scope="col">${toTitle}</th></tr></thead>
    <tbody>${rows.map(
      ({ path, from: left, to: right }) => html`<tr key=${label(path)}>
        <th scope="row"><code>${label(path)}</code></th>
        <td class=${left === undefined ? "absent" : "removed"}><${DiffValue} value=${left} sign="−" /></td>
        <td class=${right === undefined ? "absent" : "added"}><${DiffValue} value=${right} sign="+" /></td>
      </tr>`,
    )}</tbody>
  </table></div>`;
}

export function DiffValue({ value, sign }) {
  if (value === undefined) return html`<span class="muted">not set</span>`;
  return html`${sign ? html`<span class="sign" aria-hidden="true">${sign}</span>` : null}<span class="value">${typeof value === "object" ? pretty(value) : cell(value)}</span>`;
}

/** Ticks of time above a range input: the positions are steps, each with a text. The last position is now. */
export function Slider({ id, label: name, steps, position, set, describe }) {
  const last = steps - 1;
  const move = (to) => set(Math.min(last, Math.max(0, to)));
  return html`<div class="slider">
    <button type="button" class="small" aria-label=${`${name}: one step back`} disabled=${position <= 0} onClick=${() => move(position - 1)}>◀</button>
    <input id=${id} type="range" min="0" max=${last} step="1" value=${position} aria-label=${name} aria-valuetext=${describe(position)} disabled=${last < 1}
      onInput=${(event) => move(Number(event.target.value))} />
    <button type="button" class="small" aria-label=${`${name}: one step forward`} disabled=${position >= last} onClick=${() => move(position + 1)}>▶</button>
  </div>`;
}
