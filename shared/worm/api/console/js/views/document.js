// One document: a form from the schema, or its JSON. A save holds only for the version that was read; where somebody else
// saved first, three versions are shown by field, and the choice is saved on top of theirs.
import { address, go, guard, here, place, reading } from "../address.js";
import { changes, isRounded, label, merged, patch, SYSTEM_FIELDS, threeWay } from "../changes.js";
import { mayChange, mayCreate, readModel } from "../catalog.js";
import { because, call, path, Problem, readDocument } from "../client.js";
import { count, pretty, relative, time } from "../format.js";
import { DocumentForm } from "../form.js";
import {
  announce,
  Answered,
  tell,
  CodeButton,
  CodePanel,
  Confirm,
  DiffValue,
  Heading,
  ProblemBox,
  FoldedReason,
  useAnswer,
} from "../parts.js";
import { html, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "../preact.js";
import { emptyDocument } from "../schema.js";
import { snippets } from "../snippets.js";

const PATCH = "application/json-patch+json";
const branchOf = () => place.value.query.get("branch");
const target = (name, id, ...rest) => path("v1", "models", name, "documents", id, ...rest);

export function DocumentView({ name, id }) {
  const branch = branchOf();
  const answer = useAnswer(
    async (signal) => {
      const [model, found] = await Promise.all([
        readModel(name, signal),
        readDocument("GET", target(name, id), { query: { branch }, signal }).catch((problem) => {
          if (problem.status === 404) return { missing: problem };
          throw problem;
        }),
      ]);
      return { model, found };
    },
    [name, id, branch],
  );
  return html`<${Answered} answer=${answer} lines=${10}>${({ model, found }) =>
    found.missing
      ? html`<${Missing} model=${model} id=${id} problem=${found.missing} />`
      : html`<${Editor} key=${found.etag} model=${model} id=${id} found=${found} />`}<//>`;
}

function Missing({ model, id, problem }) {
  return html`<${Heading} title=${id} trail=${trailOf(model.name)} />
    <${ProblemBox} problem=${new Problem(problem.status, { ...problem.body, hint: model.softDelete ? "If it was deleted, it may be in the trash." : null })}>
      <p class="links">
        ${model.softDelete ? html`<a class="button" href=${address(["trash"], { model: model.name })}>Look in the trash</a> ` : null}
        ${model.oplog || model.space ? html`<a class="button" href=${reading.history(model.name, id)}>See its history</a>` : null}
      </p>
    <//>`;
}

const trailOf = (name) => html`<a href=${address([])}>Collections</a> / <a href=${reading.table(name)}>${name}</a>`;

/**
 * The draft of a document with what is wrong in it, by JSON pointer: what the controls found, which stops a save, and what
 * the server said of the last one, which holds until something is changed.
 */
function useDraft(document) {
  const [draft, setValue] = useState(document);
  const [wrong, setWrong] = useState(new Map());
  const [told, setTold] = useState(new Map());
  const fail = (pointer, message) =>
    setWrong((last) => {
      const next = new Map(last);
      if (message) next.set(pointer, message);
      else next.delete(pointer);
      return next;
    });
  const setDraft = (value) => (setTold(new Map()), setValue(value));
  const reset = (value) => (setWrong(new Map()), setDraft(value));
  return { draft, setDraft, reset, fail, tell: setTold, errors: new Map([...told, ...wrong]), isWrong: wrong.size > 0 };
}

/** Why these values cannot be written, or null. */
function refused(values) {
  if (!values.some(isRounded)) return null;
  const detail = "It is part of your change, and would be stored with different digits.";
  return new Problem(0, { title: "A whole number is too large for a browser to store exactly", detail, hint: "Use the API or the SDK for this change." });
}

/** A problem that names members of the document is shown at their controls as well. */
function pointed(problem) {
  const { errors, title, ...first } = problem.body ?? {};
  const told = new Map();
  for (const { pointer, field, detail } of errors?.length ? errors : [first]) {
    const place = pointer ?? (field ? "/" + field.replace(/\./g, "/") : null);
    if (place) told.set(place, [told.get(place), detail ?? title].filter(Boolean).join(". "));
  }
  return told;
}

function Editor({ model, id, found: loaded }) {
  const [found, setFound] = useState(loaded);
  const state = useDraft(found.document);
  const { draft, reset, isWrong } = state;
  const [problem, setProblem] = useState(null);
  const [conflict, setConflict] = useState(null);
  const [isDeleting, setDeleting] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const branch = branchOf();
  const canChange = mayChange(model);
  const operations = patch(found.document, draft);
  const isDirty = operations.length > 0;
  useUnsaved(isDirty || isWrong);

  const keep = (saved, text) => {
    setFound(saved);
    reset(saved.document);
    setConflict(null);
    setReason("");
    tell(text);
  };
  const write = (base, wanted) =>
    readDocument("PATCH", target(model.name, id), {
      query: { branch },
      headers: { "If-Match": base.etag, ...because(reason) },
      body: patch(base.document, wanted),
      type: PATCH,
    });
  const save = async (base = found, wanted = draft) => {
    const obstacle = refused(patch(base.document, wanted).map((one) => one.value));
    setProblem(obstacle);
    if (obstacle) return;
    setBusy(true);
    try {
      keep(await write(base, wanted), "Saved");
    } catch (error) {
      if (error.status === 412) await meet(base.document, wanted);
      else {
        setProblem(error);
        state.tell(pointed(error));
      }
    } finally {
      setBusy(false);
    }
  };
  /** Somebody saved after `base`: get theirs, and let the reader choose. */
  const meet = async (base, mine) => {
    try {
      const theirs = await readDocument("GET", target(model.name, id), { query: { branch } });
      setConflict({ base, mine, theirs });
      announce("Somebody else saved this document first. Choose what to keep.");
    } catch (error) {
      setProblem(
        error.status === 404
          ? new Problem(412, {
              title: "Somebody deleted this document",
              detail: "Your changes are still here.",
              hint: "Restore it from the trash or from its history, then save again.",
            })
          : error,
      );
    }
  };
  const remove = async (why) => {
    await call("DELETE", target(model.name, id), {
      query: { branch },
      headers: { "If-Match": found.etag, ...because(why) },
    });
    tell(`${id} was deleted`);
    go(reading.table(model.name), { isSure: true });
  };

  const snippet = snippets.document({
    model: model.name,
    id,
    branch,
    operations,
    version: found.version,
    etag: found.etag,
    reason,
  });
  return html`<${Heading} title=${id === "_" ? model.name : id} trail=${trailOf(model.name)}>
      <${CodeButton} />
      ${model.oplog || model.space ? html`<a class="button" href=${reading.history(model.name, id)}>History</a>` : null}
      ${canChange ? html`<button type="button" class="danger-quiet" onClick=${() => setDeleting(true)}>Delete</button>` : null}
    <//>
    <${CodePanel} snippet=${snippet} />
    <${Stamp} found=${found} />
    ${
      conflict
        ? html`<${ThreeWay} key=${conflict.theirs.etag} conflict=${conflict} isBusy=${isBusy} save=${(wanted) => save(conflict.theirs, wanted)}
          discard=${() => keep(conflict.theirs, "Your changes were discarded")} back=${() => setConflict(null)} />`
        : html`<${Tabs} /><${Body} model=${model} state=${state} disabled=${!canChange || isBusy} />
          <${ProblemBox} problem=${problem} />
          ${
            canChange
              ? html`<div class="save-bar">
                ${isDirty ? html`<${FoldedReason} value=${reason} set=${setReason} />` : null}
                <span class="muted" aria-live="polite">${isDirty ? count(operations.length, "field") + " changed" : "no changes"}</span>
                <button type="button" disabled=${!isDirty || isBusy} onClick=${() => reset(found.document)}>Discard</button>
                <button type="button" class="primary" disabled=${!isDirty || isWrong || isBusy} onClick=${() => save()}>Save</button>
              </div>`
              : html`<p class="muted">${model.mode === "readwrite" ? "You can read this document, but not change it." : `Documents of a model with mode ${model.mode} cannot be changed.`}</p>`
          }`
    }
    ${
      isDeleting
        ? html`<${Confirm} title=${`Delete ${id}?`} action="Delete" danger asksReason act=${remove} close=${() => setDeleting(false)}>
          <p>${model.softDelete ? "It moves to the trash, where you can restore it." : model.oplog ? "You can restore it from its history." : "This model keeps neither trash nor history, so the document is deleted permanently."}</p>
        <//>`
        : null
    }`;
}

/** Asks before the user leaves unsaved changes: the console does, or the browser if the tab is closed. */
function useUnsaved(isDirty) {
  useLayoutEffect(() => {
    if (!isDirty) return undefined;
    const warn = (event) => event.preventDefault();
    guard(true);
    addEventListener("beforeunload", warn);
    return () => {
      guard(false);
      removeEventListener("beforeunload", warn);
    };
  }, [isDirty]);
}

function Stamp({ found }) {
  const { createdAt, updatedAt } = found.document;
  return html`<p class="stamp muted">
    ${found.seq ? html`entry <b>${found.seq}</b> · ` : null}version <code title=${found.version}>${found.version}</code>
    ${updatedAt ? html` · updated <time datetime=${updatedAt} title=${time(updatedAt)}>${relative(updatedAt)}</time>` : null}
    ${createdAt ? html` · created <time datetime=${createdAt} title=${time(createdAt)}>${relative(createdAt)}</time>` : null}
  </p>`;
}

function Tabs() {
  const isJson = place.value.query.get("tab") === "json";
  return html`<div role="group" aria-label="Edit as" class="segments">
    <button type="button" aria-pressed=${!isJson} onClick=${() => go(here({ tab: null }), { replace: true })}>Form</button>
    <button type="button" aria-pressed=${isJson} onClick=${() => go(here({ tab: "json" }), { replace: true })}>JSON</button>
  </div>`;
}

function Body({ model, state, disabled }) {
  const { draft, setDraft, errors, fail } = state;
  if (place.value.query.get("tab") === "json")
    return html`<${JsonEditor} draft=${draft} set=${setDraft} fail=${fail} error=${errors.get("")} disabled=${disabled} />`;
  return html`<${DocumentForm} schema=${model.schema} document=${draft} change=${setDraft} errors=${errors} fail=${fail} disabled=${disabled} />`;
}

function JsonEditor({ draft, set, fail, error, disabled }) {
  const id = useId();
  const own = useRef(draft);
  const [text, setText] = useState(pretty(draft));
  useEffect(() => {
    if (own.current !== draft) setText(pretty(draft));
  }, [draft]);
  useEffect(() => () => fail("", null), []);
  const input = (event) => {
    setText(event.target.value);
    try {
      const value = JSON.parse(event.target.value);
      if (typeof value !== "object" || value === null || Array.isArray(value))
        throw new Error("A document must be a JSON object");
      fail("", null);
      own.current = value;
      set(value);
    } catch (problem) {
      fail("", problem.message);
    }
  };
  return html`<div class=${`field json-editor ${error ? "wrong" : ""}`}>
    <label for=${id} class="unseen">The document as JSON</label>
    <textarea id=${id} class="mono" spellcheck="false" rows=${Math.min(32, Math.max(10, text.split("\n").length + 1))} value=${text} disabled=${disabled} onInput=${input}
      aria-describedby=${error ? `${id}-error` : null}></textarea>
    ${error ? html`<p class="error" id=${`${id}-error`} role="alert">${error}</p>` : null}
  </div>`;
}

// Somebody else saved first

function ThreeWay({ conflict, save, discard, back, isBusy }) {
  const { base, mine, theirs } = conflict;
  const rows = threeWay(base, mine, theirs.document);
  const [choices, setChoices] = useState(() =>
    Object.fromEntries(
      rows
        .filter((one) => one.kind !== "conflict")
        .map((one) => [label(one.path), one.kind === "mine" ? "mine" : "theirs"]),
    ),
  );
  const section = useRef();
  useEffect(() => section.current.focus(), []);
  const open = rows.filter((one) => !choices[label(one.path)]).length;
  const choose = (row, side) => setChoices({ ...choices, [label(row.path)]: side });
  const all = (side) =>
    setChoices(
      Object.fromEntries(
        rows.map((one) => [
          label(one.path),
          one.kind === "conflict" || choices[label(one.path)] === undefined ? side : choices[label(one.path)],
        ]),
      ),
    );
  const conflicts = rows.filter((one) => one.kind === "conflict").length;
  const by = theirs.document.updatedAt;
  return html`<section class="three-way" ref=${section} tabindex="-1" aria-label="Three versions">
    <div class="notice warn"><b>Somebody else saved this document first</b>${by ? html` (<time datetime=${by}>${relative(by)}</time>)` : null}.
      ${conflicts ? ` ${count(conflicts, "field")} changed on both sides: choose which value to keep.` : " You changed different fields; both can be kept."}</div>
    <div class="three-way-tools">
      ${conflicts ? html`<button type="button" class="small" onClick=${() => all("mine")}>Use mine for all conflicts</button> <button type="button" class="small" onClick=${() => all("theirs")}>Use theirs for all conflicts</button>` : null}
    </div>
    <div class="scroll" role="region" aria-label="Fields that changed" tabindex="0"><table class="diff three">
      <thead><tr><th scope="col">Field</th><th scope="col">Base</th><th scope="col">Mine</th><th scope="col">Theirs</th></tr></thead>
      <tbody>${rows.map((row) => html`<${ThreeWayRow} key=${label(row.path)} row=${row} choice=${choices[label(row.path)]} choose=${(side) => choose(row, side)} />`)}</tbody>
    </table></div>
    <div class="save-bar">
      <span class="muted" aria-live="polite">${open ? `${count(open, "field")} left to decide` : "nothing left to decide"}</span>
      <button type="button" onClick=${back}>Keep editing</button>
      <button type="button" onClick=${discard}>Discard mine</button>
      <button type="button" class="primary" disabled=${open > 0 || isBusy} onClick=${() => save(merged(theirs.document, rows, choices))}>Save on top of theirs</button>
    </div>
  </section>`;
}

function ThreeWayRow({ row, choice, choose }) {
  const id = useId();
  const option = (side, value) => html`<td class=${choice === side ? "chosen" : ""}>
    <label><input type="radio" name=${id} checked=${choice === side} onChange=${() => choose(side)} aria-label=${`${label(row.path)}: ${side}`} /> <${DiffValue} value=${value} /></label>
  </td>`;
  return html`<tr class=${row.kind} data-kind=${row.kind}>
    <th scope="row"><code>${label(row.path)}</code>${row.kind === "conflict" ? html` <span class="badge bad">conflict</span>` : null}</th>
    <td><${DiffValue} value=${row.base} /></td>
    ${option("mine", row.mine)} ${option("theirs", row.theirs)}
  </tr>`;
}

// New documents

export function NewDocumentView({ name }) {
  const model = useAnswer((signal) => readModel(name, signal), [name]);
  return html`<${Answered} answer=${model} lines=${10}>${(found) => html`<${Creator} model=${found} />`}<//>`;
}

function Creator({ model }) {
  const state = useDraft(emptyDocument(model.schema));
  const { draft, isWrong } = state;
  const [id, setId] = useState("");
  const [problem, setProblem] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [reason, setReason] = useState("");
  const branch = branchOf();
  // Who does not know whether it arrived sends it again: the same document makes one, not two.
  const key = useMemo(() => crypto.randomUUID(), [draft, id, reason, branch]);
  const isSingleton = !/\(id:/.test(model.path);
  const wrongId = state.errors.get("/id");
  useUnsaved(!isBusy && (isWrong || id !== "" || changes(emptyDocument(model.schema), draft).length > 0));
  if (!mayCreate(model))
    return html`<${Heading} title=${`New ${model.name}`} trail=${trailOf(model.name)} /><p class="muted">You cannot create documents here.</p>`;
  const create = async (event) => {
    event.preventDefault();
    const obstacle = refused([draft]);
    setProblem(obstacle);
    if (obstacle) return;
    setBusy(true);
    try {
      const document = Object.fromEntries(Object.entries(draft).filter(([field]) => !SYSTEM_FIELDS.has(field)));
      const made = await readDocument("POST", path("v1", "models", model.name, "documents"), {
        query: { branch },
        headers: { ...because(reason), "Idempotency-Key": key },
        body: id ? { ...document, id } : document,
      });
      tell("Created");
      go(reading.document(model.name, made.id), { isSure: true });
    } catch (error) {
      setProblem(error);
      state.tell(pointed(error));
      setBusy(false);
    }
  };
  return html`<form onSubmit=${create}>
    <${Heading} title=${`New ${model.name}`} trail=${trailOf(model.name)}><${CodeButton} /><//>
    <${CodePanel} snippet=${snippets.create({ model: model.name, id, document: draft, branch })} />
    <${Tabs} />
    ${isSingleton ? null : html`<div class="form"><label class=${`field ${wrongId ? "wrong" : ""}`} data-pointer="/id"><span>id <small>leave empty to generate one</small></span><input type="text" class="mono" value=${id} onInput=${(event) => setId(event.target.value)} />${wrongId ? html`<p class="error">${wrongId}</p>` : null}</label></div>`}
    <${Body} model=${model} state=${state} disabled=${isBusy} />
    <${ProblemBox} problem=${problem} />
    <div class="save-bar"><${FoldedReason} value=${reason} set=${setReason} /><button type="submit" class="primary" disabled=${isWrong || isBusy}>Create</button></div>
  </form>`;
}
