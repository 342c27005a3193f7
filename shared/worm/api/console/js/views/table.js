// One collection: filter chips, facets, columns, sort, the past, and rows that page in as you scroll.
// Rows have a fixed height and only those in sight are in the page, so a table of any length takes the same memory.
import { address, go, here, place, reading } from "../address.js";
import { valueOf } from "../changes.js";
import { mayCreate, readModel } from "../catalog.js";
import { call, get, path, request } from "../client.js";
import { chipsOf, chipText, filterOf, operatorsOf, parse, valueOf as typed } from "../filters.js";
import { cell, count, number, relative, time } from "../format.js";
import { FIRST_ROWS, Pages } from "../pages.js";
import {
  announce,
  Answered,
  Badge,
  CodeButton,
  CodePanel,
  Dialog,
  Empty,
  Heading,
  Menu,
  ProblemBox,
  Slider,
  useAnswer,
} from "../parts.js";
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../preact.js";
import { defaultColumns, fieldsOf } from "../schema.js";
import { snippets } from "../snippets.js";
import { queryOf } from "./query.js";

const ROW_PIXELS = 30;
const OVERSCAN = 10;
const MOMENTS = 100;
const FACET_VALUES = 12;
const EXPORTS = [
  ["csv", "CSV"],
  ["ndjson", "NDJSON"],
  ["parquet", "Parquet"],
  ["arrow", "Arrow"],
];

export function TableView({ name }) {
  const model = useAnswer((signal) => readModel(name, signal), [name]);
  return html`<${Answered} answer=${model} lines=${12}>${(found) => html`<${Table} model=${found} />`}<//>`;
}

function Table({ model }) {
  const { query } = place.value;
  const fields = useMemo(() => fieldsOf(model.schema), [model]);
  const asked = queryOf(query);
  const filter = parse(asked.filter);
  const columns = asked.select ? asked.select.split(",").filter(Boolean) : defaultColumns(fields);
  const hasPast = Boolean(model.oplog || model.space);
  return html`<div class="table-view">
    <${Heading} title=${model.name} trail=${html`<a href=${address([])}>Collections</a>`}>
      <${CodeButton} />
      ${hasPast ? html`<${PastButton} isOpen=${query.has("time") || Boolean(asked.at)} />` : null}
      <a class="button" href=${address(["models", model.name, "explain"], { ...Object.fromEntries(query), code: null, cursor: null })}>Explain</a>
      <${Columns} fields=${fields} columns=${columns} />
      <${Export} model=${model} asked=${asked} />
      ${mayCreate(model) && !asked.at ? html`<a class="button primary" href=${address(["models", model.name, "new"])}>New</a>` : null}
    <//>
    <${CodePanel} snippet=${snippets.query({ model: model.name, ...asked, filter, limit: FIRST_ROWS, cursor: query.get("cursor") })} />
    ${
      filter === undefined
        ? html`<${ProblemBox} problem=${{ message: "The filter in the address is not a JSON object" }}><a href=${here({ filter: null })}>Remove the filter</a><//>`
        : html`<${Filters} model=${model} fields=${fields} filter=${filter} branch=${asked.branch} />
          ${hasPast && (query.has("time") || asked.at) ? html`<${Moment} model=${model} at=${asked.at} />` : null}
          <div class="table-body">
            <${Facets} model=${model} filter=${filter} asked=${asked} />
            <${Rows} key=${JSON.stringify([asked.filter, asked.sort, asked.select, asked.at, asked.branch])} model=${model} fields=${fields} columns=${columns} asked=${asked} />
          </div>`
    }
  </div>`;
}

const setFilter = (filter) =>
  go(here({ filter: Object.keys(filter).length ? JSON.stringify(filter) : null, cursor: null }));

// Chips

function Filters({ model, fields, filter, branch }) {
  const [editing, setEditing] = useState(null);
  const chips = chipsOf(filter);
  const without = (index) => chips.filter((_, other) => other !== index);
  /** A mistake that the server finds is said in the dialog; anything else is no reason to stop. */
  const save = async (chip) => {
    const others = editing.index === undefined ? chips : without(editing.index);
    const asked = { filter: JSON.stringify(filterOf([chip])), explain: "true", branch };
    try {
      await get(path("v1", "models", model.name, "documents"), asked);
    } catch (problem) {
      if (problem.body?.type === "urn:worm:invalid") throw problem;
    }
    setEditing(null);
    setFilter(filterOf([...others, chip]));
  };
  return html`<div class="chips" role="group" aria-label="Filter">
    ${chips.map(
      (chip, index) => html`<span class="chip" key=${index}>
        <button type="button" class="chip-text" onClick=${() => setEditing({ chip, index })} title="Change this condition">${chipText(chip)}</button>
        <button type="button" class="chip-x" aria-label=${`Remove the condition ${chipText(chip)}`} onClick=${() => setFilter(filterOf(without(index)))}>×</button>
      </span>`,
    )}
    <button type="button" class="chip-add" onClick=${() => setEditing({})}>+ Filter</button>
    ${chips.length > 1 ? html`<button type="button" class="plain small" onClick=${() => setFilter({})}>Clear all</button>` : null}
    ${/\(id:/.test(model.path) ? html`<${OpenById} model=${model} />` : null}
    ${editing ? html`<${ChipDialog} fields=${fields} chip=${editing.chip} save=${save} close=${() => setEditing(null)} />` : null}
  </div>`;
}

function OpenById({ model }) {
  const open = (event) => {
    event.preventDefault();
    const id = event.target.elements.id.value.trim();
    if (id) go(reading.document(model.name, id));
  };
  return html`<form class="open-by-id" onSubmit=${open}>
    <input type="text" name="id" class="mono" aria-label="Open by id" placeholder="Open by id" spellcheck="false" autocomplete="off" />
    <button type="submit" class="small">Open</button>
  </form>`;
}

function ChipDialog({ fields, chip, save, close }) {
  const [isJson, setJson] = useState(Boolean(chip?.json));
  return html`<${Dialog} title=${chip ? "Change a condition" : "Add a condition"} close=${close}>
    <div role="group" aria-label="Condition format" class="segments">
      <button type="button" aria-pressed=${!isJson} onClick=${() => setJson(false)}>Field</button>
      <button type="button" aria-pressed=${isJson} onClick=${() => setJson(true)}>JSON</button>
    </div>
    ${isJson ? html`<${JsonCondition} chip=${chip} save=${save} />` : html`<${FieldCondition} fields=${fields} chip=${chip} save=${save} />`}
  <//>`;
}

function JsonCondition({ chip, save }) {
  const given = chip?.json ?? (chip ? filterOf([chip]) : { $or: [{}, {}] });
  const [text, setText] = useState(JSON.stringify(given, null, 2));
  const [problem, setProblem] = useState(null);
  const submit = async (event) => {
    event.preventDefault();
    const filter = parse(text);
    if (filter === undefined) setProblem({ message: "This is not a JSON object" });
    else await save({ json: filter }).catch(setProblem);
  };
  return html`<form onSubmit=${submit}>
    <label class="field"><span>Filter</span><textarea class="mono" rows="8" spellcheck="false" value=${text} onInput=${(event) => (setProblem(null), setText(event.target.value))}></textarea></label>
    <${ProblemBox} problem=${problem} />
    <div class="dialog-foot"><button type="submit" class="primary">Apply</button></div>
  </form>`;
}

function FieldCondition({ fields, chip, save }) {
  const known = chip?.field && !chip.json && !fields.some((one) => one.path === chip.field);
  const choices = known ? [...fields, { path: chip.field, kind: "any" }] : fields;
  const [name, setName] = useState(chip?.field ?? choices.find((one) => one.enum)?.path ?? choices[1]?.path ?? "id");
  const field = choices.find((one) => one.path === name);
  const operators = operatorsOf(field);
  const [op, setOp] = useState(chip?.op ?? operators[0].op);
  const operator = operators.find((one) => one.op === op) ?? operators[0];
  const [text, setText] = useState(Array.isArray(chip?.value) ? chip.value.join(", ") : cell(chip?.value));
  const [error, setError] = useState("");
  const values = field.kind === "boolean" ? ["true", "false"] : operator.many ? null : field.enum;
  const shown = values && !values.includes(text) ? values[0] : text;
  const submit = async (event) => {
    event.preventDefault();
    try {
      await save({ field: name, op: operator.op, value: operator.fixed ? undefined : typed(shown, field, operator) });
    } catch (problem) {
      setError(problem.body?.detail ?? problem.message);
    }
  };
  const pick = (set) => (event) => (setError(""), set(event.target.value));
  return html`<form onSubmit=${submit} class="condition">
    <label class="field"><span>Field</span><select value=${name} onChange=${pick(setName)}>${choices.map((one) => html`<option key=${one.path} value=${one.path}>${one.path}</option>`)}</select></label>
    <label class="field"><span>Condition</span><select value=${operator.op} onChange=${pick(setOp)}>${operators.map((one) => html`<option key=${one.op} value=${one.op}>${one.label}</option>`)}</select></label>
    ${
      operator.fixed
        ? null
        : values
          ? html`<label class="field"><span>Value</span><select value=${shown} onChange=${pick(setText)}>${values.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>`
          : html`<label class="field"><span>Value ${operator.many ? html`<small>separate values with commas${field.enum ? `: ${field.enum.join(", ")}` : ""}</small>` : field.kind === "datetime" ? html`<small>UTC, such as 2026-02-24T12:00:00Z</small>` : null}</span>
            <input type="text" value=${text} onInput=${pick(setText)} inputmode=${["number", "integer"].includes(field.kind) ? "decimal" : null} /></label>`
    }
    ${error ? html`<p class="error" role="alert">${error}</p>` : null}
    <div class="dialog-foot"><button type="submit" class="primary">Apply</button></div>
  </form>`;
}

// Columns and export

function Columns({ fields, columns }) {
  const toggle = (name, isOn) => {
    const order = columns.filter((one) => one !== name);
    const later = fields.slice(fields.findIndex((one) => one.path === name) + 1).map((one) => one.path);
    const before = order.findIndex((one) => later.includes(one));
    if (isOn) order.splice(before < 0 ? order.length : before, 0, name);
    go(here({ columns: order.join(","), cursor: null }), { replace: true });
  };
  return html`<${Menu} title="Columns">
      ${fields
        .filter((one) => one.path !== "id")
        .map(
          (
            one,
          ) => html`<label key=${one.path}><input type="checkbox" checked=${columns.includes(one.path)} disabled=${columns.length === 1 && columns[0] === one.path}
          onChange=${(event) => toggle(one.path, event.target.checked)} /> ${one.path} <small class="muted">${one.kind}</small></label>`,
        )}
      ${place.value.query.has("columns") ? html`<button type="button" class="small" onClick=${() => go(here({ columns: null, cursor: null }), { replace: true })}>Default columns</button>` : null}
    <//>`;
}

/** The API wants the token in a header, which a plain link cannot send: a click fetches the file, then saves it. */
function Export({ model, asked }) {
  const [problem, setProblem] = useState(null);
  const query = (format) => ({ format, ...asked });
  const target = path("v1", "models", model.name, "export");
  const href = (format) =>
    `${target}?${new URLSearchParams(Object.entries(query(format)).filter(([, value]) => value))}`;
  const save = async (event, format) => {
    event.preventDefault();
    try {
      const response = await request("GET", target, { query: query(format) });
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await response.blob());
      link.download = `${model.name}.${format}`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
      announce(`${model.name}.${format} was saved`);
    } catch (error) {
      setProblem(error);
    }
  };
  return html`<${Menu} title="Export">${EXPORTS.map(
    ([format, title]) =>
      html`<a key=${format} href=${href(format)} download=${`${model.name}.${format}`} onClick=${(event) => save(event, format)}>${title}</a>`,
  )}<//>
    ${problem ? html`<${Dialog} title="The export failed" close=${() => setProblem(null)}><${ProblemBox} problem=${problem} /><//>` : null}`;
}

// Facets

function Facets({ model, filter, asked }) {
  const indexes = (model.indexes ?? []).filter((one) => !one.unique);
  if (!indexes.length) return null;
  const open = new Set((place.value.query.get("facets") ?? "").split(",").filter(Boolean));
  const toggle = (name, isOpen) => {
    if (isOpen === open.has(name)) return;
    if (isOpen) open.add(name);
    else open.delete(name);
    go(here({ facets: [...open].join(",") }), { replace: true });
  };
  return html`<aside class="facets" aria-label="Facets">${indexes.map(
    (
      index,
    ) => html`<details key=${index.field} open=${open.has(index.field)} onToggle=${(event) => toggle(index.field, event.target.open)}>
      <summary>Values of ${index.field}</summary>
      ${open.has(index.field) ? html`<${Facet} model=${model} index=${index} filter=${filter} asked=${asked} />` : null}
    </details>`,
  )}</aside>`;
}

function Facet({ model, index, filter, asked }) {
  const name = index.field;
  const others = { ...filter };
  delete others[name];
  const answer = useAnswer(
    (signal) =>
      call("POST", path("v1", "models", model.name, "aggregate"), {
        body: { filter: others, groupBy: [name], metrics: { count: true }, ...(asked.at ? { at: asked.at } : {}) },
        query: { branch: asked.branch },
        signal,
      }),
    [model.name, name, JSON.stringify(others), asked.at, asked.branch],
  );
  return html`<${Answered} answer=${answer} lines=${3}>${(found) => {
    const values = facetValues(found.groups ?? [], name);
    if (!values.length) return html`<p class="muted">No values</p>`;
    const chosen = filter[name];
    return html`<ul>${values.slice(0, FACET_VALUES).map(([value, amount]) => {
      const isOn = JSON.stringify(chosen) === JSON.stringify(value);
      const next = { ...others, ...(isOn ? {} : { [name]: value }) };
      return html`<li key=${JSON.stringify(value)}><button type="button" aria-pressed=${isOn} onClick=${() => setFilter(next)}>
        <span>${cell(value) || "(empty)"}</span><span class="muted">${number(amount)}</span></button></li>`;
    })}</ul>
    ${values.length > FACET_VALUES ? html`<p class="muted">and ${number(values.length - FACET_VALUES)} more</p>` : null}`;
  }}<//>`;
}

/** Values with their numbers, most frequent first. An array counts for each of its elements. */
function facetValues(groups, name) {
  const sums = new Map();
  for (const group of groups) {
    const value = group.key?.[name];
    if (value === undefined || value === null) continue;
    for (const one of Array.isArray(value) ? new Set(value) : [value]) {
      const text = JSON.stringify(one);
      sums.set(text, (sums.get(text) ?? 0) + group.count);
    }
  }
  return [...sums].map(([text, sum]) => [JSON.parse(text), sum]).sort((a, b) => b[1] - a[1]);
}

// The past

function PastButton({ isOpen }) {
  const toggle = () => go(here(isOpen ? { at: null, time: null, cursor: null } : { time: 1 }), { replace: !isOpen });
  return html`<button type="button" aria-expanded=${isOpen} onClick=${toggle}><span aria-hidden="true">◷</span> Past</button>`;
}

/** A slider over the moments at which the collection changed; its right end is now. */
function Moment({ model, at }) {
  const { query } = place.value;
  const branch = query.get("branch");
  const history = useAnswer(
    (signal) => get("/v1/history", { model: model.name, limit: MOMENTS, branch }, signal),
    [model.name, branch],
  );
  const [shown, setShown] = useState(null);
  const timer = useRef();
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => setShown(null), [at]);
  const moments = [...new Set((history.value?.items ?? []).map((entry) => entry.ts))].sort();
  const found = at ? moments.findLastIndex((one) => one <= at) : moments.length;
  const position = shown ?? (found < 0 ? 0 : found);
  const set = (to) => {
    setShown(to);
    clearTimeout(timer.current);
    timer.current = setTimeout(
      () => go(here({ at: to >= moments.length ? null : moments[to], cursor: null, time: 1 }), { replace: true }),
      150,
    );
  };
  const describe = (to) => (to >= moments.length ? "now" : time(moments[to]));
  const text = shown === null ? (at ?? "") : shown >= moments.length ? "" : moments[shown];
  return html`<div class="moment">
    <b>As of</b>
    <${Slider} label="Moment" steps=${moments.length + 1} position=${position} set=${set} describe=${describe} />
    <input type="text" class="mono" aria-label="Moment, as a time in UTC" placeholder="now" value=${text} size="22"
      onChange=${(event) => go(here({ at: event.target.value.trim() || null, cursor: null, time: 1 }))} />
    <span class="muted when">${text ? relative(text) : "now"}</span>
    <button type="button" class="small" onClick=${() => go(here({ at: null, time: null, cursor: null }))}>Back to now</button>
  </div>`;
}

// Rows

const WIDTHS = { integer: 9, number: 11, boolean: 8, datetime: 22, array: 18, object: 24 };
const ID_WIDTHS = { uuid: 26, ulid: 22, int: 10 };

/** By the type alone: no column moves when rows come, and a long text takes no more than a short one. */
function widthOf({ path: name, kind, enum: values }, model) {
  if (name === "id") return ID_WIDTHS[/\(id:(\w+)\)/.exec(model.path)?.[1]] ?? 18;
  return Math.max(WIDTHS[kind] ?? (values ? 12 : 21), Math.min(name.length, 24) + 5);
}

function Rows({ model, fields, columns, asked }) {
  const scroller = useRef();
  const [, redraw] = useState(0);
  const [turn, setTurn] = useState(0);
  const [view, setView] = useState({ top: 0, height: 600 });
  const pages = useMemo(() => {
    const select = asked.select ? columns.join(",") : null;
    const load = (cursor, limit, signal) =>
      get(path("v1", "models", model.name, "documents"), { ...asked, select, limit, cursor }, signal);
    return new Pages(load, () => redraw((last) => last + 1), place.peek().query.get("cursor"));
  }, [turn]);
  useEffect(() => () => pages.close(), [pages]);
  useLayoutEffect(() => {
    const measure = () => setView({ top: scroller.current.scrollTop, height: scroller.current.clientHeight });
    const observer = new ResizeObserver(measure);
    observer.observe(scroller.current);
    return () => observer.disconnect();
  }, []);
  const first = Math.max(0, Math.floor(view.top / ROW_PIXELS) - OVERSCAN);
  const end = Math.ceil((view.top + view.height) / ROW_PIXELS) + OVERSCAN;
  useEffect(() => pages.show(first, end), [pages, first, end, pages.length, pages.problem]);
  const { length, isComplete, problem } = pages;
  useEffect(() => {
    if (length) announce(`${count(length, "row")}${isComplete ? "" : " so far"}`);
    else if (isComplete) announce("No rows");
  }, [length, isComplete]);
  const scrolled = () => {
    const { scrollTop, clientHeight } = scroller.current;
    setView({ top: scrollTop, height: clientHeight });
    remember(pages, Math.floor(scrollTop / ROW_PIXELS));
  };
  const total = useTotal(model.name, asked, length > 0 && !isComplete);
  const isEnd = isComplete || Boolean(problem);
  const last = Math.min(end, isEnd ? length : length + (length ? 3 : Math.ceil(view.height / ROW_PIXELS)));
  const shown = Array.from({ length: Math.max(0, last - first) }, (_, index) => first + index);
  const all = [
    { path: "id", kind: "string" },
    ...columns.map((name) => fields.find((one) => one.path === name) ?? { path: name, kind: "any" }),
  ];
  const rest = Math.max(0, (isEnd ? length : length + 3) - last);
  const isFailed = Boolean(problem) && !length;
  return html`<div class="rows">
    <div class="grid" hidden=${isFailed} ref=${scroller} onScroll=${scrolled} role="region" aria-label=${`Rows of ${model.name}`} tabindex="0" onKeyDown=${moveFocus}>
      <table class="data" style=${{ width: `${all.reduce((sum, one) => sum + widthOf(one, model), 0)}ch` }} aria-rowcount=${isComplete ? length + 1 : -1} aria-busy=${pages.isLoading} data-rows-held=${pages.rowsHeld} data-rows-known=${length}>
        <colgroup>${all.map((one) => html`<col key=${one.path} style=${{ width: `${widthOf(one, model)}ch` }} />`)}<col /></colgroup>
        <thead><tr aria-rowindex="1">${all.map((one) => html`<${Header} key=${one.path} field=${one} sort=${asked.sort} />`)}<td class="filler" aria-hidden="true"></td></tr></thead>
        <tbody>
          ${first > 0 ? html`<tr key="above" class="spacer" aria-hidden="true"><td colspan=${all.length + 1} style=${{ height: `${first * ROW_PIXELS}px` }}></td></tr>` : null}
          ${shown.map((position) => html`<${Row} key=${position} model=${model} position=${position} row=${pages.row(position)} columns=${all} at=${asked.at} />`)}
          ${rest > 0 ? html`<tr key="below" class="spacer" aria-hidden="true"><td colspan=${all.length + 1} style=${{ height: `${rest * ROW_PIXELS}px` }}></td></tr>` : null}
        </tbody>
      </table>
      ${isComplete && !length && !problem ? html`<${Empty} title=${asked.filter ? "No matching documents" : "No documents"}>${asked.at ? "At that time." : ""}<//>` : null}
    </div>
    <${ProblemBox} problem=${problem} retry=${pages.retry.bind(pages)}>${problem?.body?.plan && problem.body.type?.endsWith("too-expensive") ? html`<${TooExpensive} />` : null}<//>
    <div class="row-count" hidden=${isFailed}>
      ${pages.first ? html`<a href=${here({ cursor: null })} onClick=${() => setTimeout(() => setTurn(turn + 1))}>From the beginning</a> · ` : null}
      ${isComplete && !pages.first ? count(length, "row") : `${count(length, "row")} loaded`}${total === null ? "" : ` of ${number(total)}`}${isEnd ? "" : ", scroll for more"}
      ${asked.at ? html` · <${Badge} tone="warn">past state: rows are read-only<//>` : null}
    </div>
  </div>`;
}

/** How many rows match, where there is more than one page. Nobody waits for it, and it may fail. */
function useTotal(name, asked, isWanted) {
  const [total, setTotal] = useState(null);
  useEffect(() => {
    if (!isWanted) return undefined;
    const aborter = new AbortController();
    const { filter, at, branch } = asked;
    get(path("v1", "models", name, "count"), { filter, at, branch }, aborter.signal).then(
      (found) => setTotal(found.count),
      () => {},
    );
    return () => aborter.abort();
  }, [isWanted]);
  return total;
}

function TooExpensive() {
  return html`<a class="button" href=${address([...place.value.parts, "explain"], Object.fromEntries(place.value.query))}>See the plan</a>`;
}

/** The address names the page in sight, so that a reload begins there. */
let remembering;
function remember(pages, position) {
  clearTimeout(remembering);
  remembering = setTimeout(() => {
    const cursor = pages.cursorOf(position);
    if (cursor !== place.peek().query.get("cursor")) history.replaceState(history.state, "", here({ cursor }));
  }, 300);
}

function Header({ field, sort }) {
  const keys = (sort ?? "").split(",").filter(Boolean);
  const direction = keys.includes(field.path) ? "ascending" : keys.includes(`-${field.path}`) ? "descending" : "none";
  const next = { none: field.path, ascending: `-${field.path}`, descending: null }[direction];
  const change = (event) => {
    const others = event.shiftKey ? keys.filter((one) => one.replace(/^-/, "") !== field.path) : [];
    go(here({ sort: [...others, ...(next ? [next] : [])].join(",") || null, cursor: null }));
  };
  const arrow = { none: "", ascending: "↑", descending: "↓" }[direction];
  const isNumber = ["integer", "number"].includes(field.kind);
  return html`<th scope="col" aria-sort=${direction} class=${`${isNumber ? "number" : ""} ${field.path === "id" ? "key" : ""}`}>
    <button type="button" onClick=${change} title="Sort by this column; hold Shift to sort by several">${field.path}<span class="arrow" aria-hidden="true">${arrow}</span></button>
  </th>`;
}

function Row({ model, position, row, columns, at }) {
  if (!row)
    return html`<tr aria-rowindex=${position + 2} class="pending"><td colspan=${columns.length + 1}><div class="bone"></div></td></tr>`;
  const href = at ? reading.history(model.name, row.id, { seq: row.seq }) : reading.document(model.name, row.id);
  return html`<tr aria-rowindex=${position + 2}>
    ${columns.map(({ path: name, kind, model: other }) => {
      if (name === "id") return html`<th scope="row" key="id" class="key"><a href=${href}>${row.id}</a></th>`;
      const value = valueOf(row.document, name);
      if (other && value) return html`<td key=${name} title=${cell(value)}><${References} model=${other} value=${value} /></td>`;
      const text = kind === "datetime" ? time(value) : cell(value);
      return html`<td key=${name} class=${["integer", "number"].includes(kind) ? "number" : ""} title=${text.length > 20 ? text.slice(0, 300) : null}>${value === null ? html`<span class="muted">null</span>` : kind === "boolean" && value !== undefined ? html`<span class="mono">${text}</span>` : text}</td>`;
    })}
    <td class="filler" aria-hidden="true"></td>
  </tr>`;
}

function References({ model, value }) {
  const ids = Array.isArray(value) ? value : [value];
  return ids.map(
    (id, index) =>
      html`${index ? ", " : ""}<a key=${index} href=${reading.document(model, String(id))} title=${`Open ${model} ${id}`}>${cell(id)}</a>`,
  );
}

/** Up and down go from row to row. */
function moveFocus(event) {
  if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
  const row = event.target.closest("tbody tr");
  const table = event.currentTarget.querySelector("tbody");
  let next = row
    ? event.key === "ArrowDown"
      ? row.nextElementSibling
      : row.previousElementSibling
    : table.querySelector("tr:not(.spacer)");
  while (next && !next.querySelector("a"))
    next = event.key === "ArrowDown" ? next.nextElementSibling : next.previousElementSibling;
  if (!next) return;
  event.preventDefault();
  next.querySelector("a").focus();
  next.scrollIntoView({ block: "nearest" });
}
