// A form made from a JSON Schema. Values are JSON; what cannot be one yet (a half-typed number) is an error of its field.
import { reading } from "./address.js";
import { at, pointer, replaced } from "./changes.js";
import { cell, pretty } from "./format.js";
import { html, useEffect, useId, useState } from "./preact.js";
import { shape } from "./schema.js";

const FIXED = new Set(["id", "createdAt", "updatedAt"]);

/** `change(document)`; `fail(pointer, message)` notes what is wrong in a control, or with null that nothing is. */
export function DocumentForm({ schema, document, change, fail, errors, disabled }) {
  const known = Object.keys(schema.properties ?? {}).filter((name) => !FIXED.has(name));
  const extra = Object.keys(document).filter((name) => !FIXED.has(name) && !known.includes(name));
  const common = { schema, document, change, fail, errors, disabled };
  return html`<div class="form">
    ${known.map((name) => html`<${Field} key=${name} ...${common} node=${schema.properties[name]} path=${[name]} required=${schema.required?.includes(name)} />`)}
    ${extra.map((name) => html`<${Field} key=${name} ...${common} node=${{}} path=${[name]} note="not in the schema" />`)}
  </div>`;
}

function Field(props) {
  const { schema, document, change, node, path, required, errors, note } = props;
  const id = useId();
  const field = shape(node, schema);
  const value = at(document, path);
  const place = pointer(path);
  const own = shownAs(field, schema) === "control";
  const error = errors.get(place) ?? (own ? errorWithin(errors, place) : undefined);
  const name = String(path[path.length - 1]);
  const set = (next) => change(replaced(document, path, next));
  const control = {
    ...props,
    id,
    field,
    value,
    set,
    place,
    described: [error && `${id}-error`, field.description && `${id}-about`].filter(Boolean).join(" ") || null,
  };
  const title = html`${name}${required ? html`<span class="required" title="required" aria-hidden="true"> *</span>` : null}<small>${[note, field.model && `→ ${field.model}`, kindText(field)].filter(Boolean).join(" · ")}</small>`;
  const below = html`${field.description ? html`<p class="about" id=${`${id}-about`}>${field.description}</p>` : null}
    ${field.model && value ? html`<p class="about"><${Reference} model=${field.model} id=${value} /></p>` : null}
    ${error ? html`<p class="error" id=${`${id}-error`}>${error}</p>` : null}`;
  if (shownAs(field, schema) === "members") {
    const others = isObject(value) ? Object.keys(value).filter((inner) => !(inner in field.properties)) : [];
    return html`<fieldset class="nested" data-pointer=${place}><legend>${title}</legend>${below}
      ${Object.entries(field.properties).map(
        ([inner, child]) =>
          html`<${Field} key=${inner} ...${props} note=${null} node=${child} path=${[...path, inner]} required=${field.required?.includes?.(inner)} />`,
      )}
      ${others.map((inner) => html`<${Field} key=${inner} ...${props} node=${{}} path=${[...path, inner]} required=${false} note="not in the schema" />`)}
    </fieldset>`;
  }
  if (shownAs(field, schema) === "list")
    return html`<fieldset class="nested" data-pointer=${place}><legend>${title}</legend>${below}<${List} ...${control} note=${null} /></fieldset>`;
  return html`<div class=${`field ${error ? "wrong" : ""}`} data-pointer=${place}><label for=${id}>${title}</label><${Control} ...${control} />${below}</div>`;
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const isFree = (field) => !Object.keys(field.properties ?? {}).length;
const kindText = (field) =>
  field.enum || field.model ? "" : field.kind === "any" ? "JSON" : field.kind === "object" && isFree(field) ? "object, as JSON" : field.kind;
const isListable = (items) => !["any", "array"].includes(items.kind) && !(items.kind === "object" && isFree(items));

/** An object without declared members is free: it is edited as JSON, like everything that has no control of its own. */
function shownAs(field, schema) {
  if (field.kind === "object" && !isFree(field)) return "members";
  return field.kind === "array" && field.items && isListable(shape(field.items, schema)) ? "list" : "control";
}

/** Of a value that is edited as JSON, the first mistake below it. */
function errorWithin(errors, place) {
  const found = [...errors].find(([pointer]) => pointer.startsWith(`${place}/`));
  return found && `${found[0].slice(place.length + 1).replace(/\//g, ".")}: ${found[1]}`;
}

/** The way to the document that a value names. */
function Reference({ model, id }) {
  return html`<a href=${reading.document(model, String(id))} aria-label=${`Open ${model} ${id}`}>Open ${model} <code>${id}</code></a>`;
}

function Control(props) {
  const { id, field, value, set, disabled, described, required } = props;
  const common = { id, disabled, "aria-describedby": described, "aria-required": required ? "true" : null };
  if (field.enum)
    return html`<${Choice} ...${common} values=${field.enum.map((one) => [cell(one), one])} value=${value} set=${set} required=${required} />`;
  if (field.kind === "boolean")
    return html`<${Choice} ...${common} values=${[
      ["true", true],
      ["false", false],
    ]} value=${value} set=${set} required=${required} />`;
  if (field.kind === "number" || field.kind === "integer") return html`<${NumberInput} ...${props} common=${common} />`;
  if (
    (field.kind === "string" || field.kind === "datetime") &&
    (value === undefined || value === null || typeof value === "string")
  )
    return html`<${TextInput} ...${props} common=${common} />`;
  return html`<${JsonInput} ...${props} common=${common} />`;
}

function Choice({ values, value, set, required, ...common }) {
  const position = values.findIndex(([, one]) => one === value);
  const odd = position < 0 && value !== undefined && value !== null;
  return html`<select ...${common} value=${position < 0 ? "" : String(position)} onChange=${(event) => set(event.target.value === "" ? undefined : values[event.target.value][1])}>
    <option value="">${odd ? `${cell(value)} (not allowed)` : required ? "choose…" : "not set"}</option>
    ${values.map(([text], index) => html`<option key=${text} value=${String(index)}>${text}</option>`)}
  </select>`;
}

function TextInput({ common, value, set, field }) {
  const isLong = typeof value === "string" && (value.length > 80 || value.includes("\n"));
  const input = (event) => set(event.target.value === "" ? undefined : event.target.value);
  if (isLong) return html`<textarea ...${common} rows="4" value=${value} onInput=${input}></textarea>`;
  const placeholder = value === null ? "null" : field.kind === "datetime" ? "2026-02-24T12:00:00Z" : "";
  return html`<input ...${common} type="text" value=${value ?? ""} placeholder=${placeholder} onInput=${input} />`;
}

function NumberInput({ common, value, set, field, fail, place }) {
  const [text, setText] = useState(cell(value ?? undefined));
  useEffect(() => {
    if (parseNumber(text, field).value !== value) setText(cell(value ?? undefined));
  }, [value]);
  const input = (event) => {
    const typed = event.target.value;
    setText(typed);
    const { value: next, error } = parseNumber(typed, field);
    fail(place, error ?? null);
    if (!error) set(next);
  };
  return html`<input ...${common} type="text" class="number-input" inputmode="decimal" value=${text} onInput=${input} />`;
}

function parseNumber(text, field) {
  const trimmed = text.trim();
  if (trimmed === "") return { value: undefined };
  const value = Number(trimmed);
  if (!Number.isFinite(value)) return { error: `${trimmed} is not a number` };
  if (field.kind === "integer" && !Number.isInteger(value)) return { error: "This must be a whole number" };
  if (Number.isInteger(value) && !Number.isSafeInteger(value))
    return { error: "This whole number is too large for a browser to store exactly" };
  return { value };
}

function JsonInput({ common, value, set, fail, place }) {
  const [text, setText] = useState(pretty(value));
  useEffect(() => {
    if (parseJson(text).value === undefined || JSON.stringify(parseJson(text).value) !== JSON.stringify(value))
      setText(pretty(value));
  }, [JSON.stringify(value)]);
  const input = (event) => {
    setText(event.target.value);
    const { value: next, error } = parseJson(event.target.value);
    fail(place, error ?? null);
    if (!error) set(next);
  };
  return html`<textarea ...${common} class="mono" rows=${Math.min(8, Math.max(2, text.split("\n").length))} spellcheck="false" value=${text} onInput=${input}></textarea>`;
}

export function parseJson(text) {
  if (text.trim() === "") return { value: undefined };
  try {
    return { value: JSON.parse(text) };
  } catch (error) {
    return { error: String(error.message) };
  }
}

function List(props) {
  const { field, schema, path, value, set, disabled } = props;
  const items = Array.isArray(value) ? value : [];
  const item = shape(field.items, schema);
  const fresh = item.enum ? item.enum[0] : ({ object: {}, boolean: false, number: 0, integer: 0 }[item.kind] ?? "");
  const isPlain = item.kind !== "object";
  return html`<ol class=${isPlain ? "list-plain" : "list-objects"}>
      ${items.map(
        (one, index) => html`<li key=${index}>
          ${
            isPlain
              ? html`<${Element} ...${props} item=${item} path=${[...path, index]} value=${one} index=${index} />`
              : html`<${Field} ...${props} node=${field.items} path=${[...path, index]} />`
          }
          <button type="button" class="plain" disabled=${disabled} aria-label=${`Remove element ${index + 1} of ${path.join(".")}`} onClick=${() => set(items.filter((_, other) => other !== index))}>×</button>
        </li>`,
      )}
    </ol>
    <button type="button" class="small" disabled=${disabled} onClick=${() => set([...items, structuredClone(fresh)])}>Add ${path[path.length - 1]}</button>`;
}

function Element(props) {
  const { item, path, value, document, change, index } = props;
  const id = useId();
  const set = (next) => change(replaced(document, path, next ?? (item.kind === "string" ? "" : null)));
  const place = pointer(path);
  const error = props.errors.get(place);
  return html`<label class="unseen" for=${id}>${`${path[path.length - 2]}, element ${index + 1}`}</label>
    <${Control} ...${props} id=${id} field=${item} value=${value} set=${set} place=${place} required=${true} described=${error ? `${id}-error` : null} />
    ${item.model && value ? html`<${Reference} model=${item.model} id=${value} />` : null}
    ${error ? html`<p class="error" id=${`${id}-error`}>${error}</p>` : null}`;
}
