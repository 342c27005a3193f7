// Filters as chips: one condition on one field each. Whatever does not fit (`$or`, `$not`, …) stays one chip of JSON.

const EXISTS = { op: "$exists", label: "exists", fixed: true };
const MISSING = { op: "$missing", label: "is missing", fixed: true };
const EQUAL = { op: "$eq", label: "is" };
const OTHER = { op: "$ne", label: "is not" };
const ANY_OF = { op: "$in", label: "is one of", many: true };
const ORDERED = [
  { op: "$gte", label: "≥" },
  { op: "$gt", label: ">" },
  { op: "$lte", label: "≤" },
  { op: "$lt", label: "<" },
];
const TEXT = [
  { op: "$contains", label: "contains" },
  { op: "$startsWith", label: "starts with" },
  { op: "$regex", label: "matches" },
];

const BY_KIND = {
  string: [EQUAL, OTHER, ...TEXT, ANY_OF, EXISTS, MISSING],
  number: [EQUAL, OTHER, ...ORDERED, ANY_OF, EXISTS, MISSING],
  boolean: [EQUAL, EXISTS, MISSING],
  datetime: [...ORDERED, { op: "$startsWith", label: "starts with" }, EXISTS, MISSING],
  array: [
    { op: "$contains", label: "contains" },
    { op: "$all", label: "contains all of", many: true },
    { op: "$size", label: "has length" },
    EXISTS,
    MISSING,
  ],
  object: [EXISTS, MISSING],
};

export function operatorsOf(field) {
  if (field.enum && field.kind === "string") return [EQUAL, OTHER, ANY_OF, EXISTS, MISSING];
  return BY_KIND[field.kind === "integer" ? "number" : field.kind] ?? BY_KIND.string;
}

const LABELS = Object.fromEntries(
  [...Object.values(BY_KIND).flat(), { op: "$nin", label: "is none of" }].map((one) => [one.op, one.label]),
);

/** The filter of an address; undefined where it is not the text of a JSON object. */
export function parse(text) {
  if (!text) return {};
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

const isOperators = (value) =>
  typeof value === "object" &&
  value !== null &&
  !Array.isArray(value) &&
  Object.keys(value).some((key) => key.startsWith("$"));

/** `[{field, op, value}]`, or `{json}` for what is no chip. */
export function chipsOf(filter) {
  return Object.entries(filter).flatMap(([field, condition]) => {
    if (field.startsWith("$")) return [{ json: { [field]: condition } }];
    if (!isOperators(condition)) return [{ field, op: "$eq", value: condition }];
    if ("$options" in condition || "$not" in condition || "$elemMatch" in condition)
      return [{ json: { [field]: condition } }];
    return Object.entries(condition).map(([op, value]) =>
      op === "$exists" && value === false ? { field, op: "$missing" } : { field, op, value },
    );
  });
}

/** The chips as one filter: several on a field become one object of operators, what cannot be joined goes under `$and`. */
export function filterOf(chips) {
  const filter = {};
  const apart = [];
  for (const chip of chips) {
    const made = chip.json ?? { [chip.field]: conditionOf(chip) };
    for (const [field, condition] of Object.entries(made)) {
      if (!(field in filter)) filter[field] = condition;
      else if (joins(filter[field], condition))
        filter[field] = { ...operators(filter[field]), ...operators(condition) };
      else apart.push({ [field]: condition });
    }
  }
  if (apart.length) filter.$and = [...(filter.$and ?? []), ...apart];
  return filter;
}

function conditionOf({ op, value }) {
  if (op === "$missing") return { $exists: false };
  if (op === "$exists") return { $exists: true };
  return op === "$eq" && !isOperators(value) ? value : { [op]: value };
}

const operators = (condition) => (isOperators(condition) ? condition : { $eq: condition });

function joins(a, b) {
  const known = Object.keys(operators(a));
  return !Array.isArray(a) && Object.keys(operators(b)).every((op) => !known.includes(op));
}

export function chipText(chip) {
  if (chip.json) return JSON.stringify(chip.json);
  const operator = LABELS[chip.op] ?? chip.op;
  if (chip.op === "$exists" || chip.op === "$missing") return `${chip.field} ${operator}`;
  const value = Array.isArray(chip.value) ? chip.value.map(shown).join(", ") : shown(chip.value);
  return `${chip.field} ${operator} ${value}`;
}

const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** A text of a control as the field's type; throws with what is expected. */
export function valueOf(text, field, operator) {
  if (operator.many) return text.split(",").map((one) => scalar(one.trim(), field));
  if (operator.op === "$size") return scalar(text, { kind: "integer" });
  return scalar(text, field);
}

function scalar(text, field) {
  const kind = field.kind === "array" ? field.itemKind : field.kind;
  if (kind === "boolean") return text === "true";
  if (kind === "number" || kind === "integer") {
    const value = Number(text);
    if (text.trim() === "" || !Number.isFinite(value)) throw new Error(`${text || "An empty value"} is not a number`);
    if (kind === "integer" && !Number.isInteger(value)) throw new Error(`${text} is not a whole number`);
    return value;
  }
  if (text === "" && kind === "datetime") throw new Error("Enter a time, or the start of one, such as 2026-02");
  return text;
}
