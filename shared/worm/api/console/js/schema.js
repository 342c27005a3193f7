// A model's JSON Schema as fields: what a column, a filter chip or a form control needs to know.

const DEPTH = 3;

function resolved(node, root) {
  for (let hops = 0; node?.$ref && hops < 20; hops += 1) {
    const { $ref, ...rest } = node;
    const found = $ref
      .replace(/^#\//, "")
      .split("/")
      .reduce((holder, name) => holder?.[decodeURIComponent(name)], root);
    node = { ...found, ...rest };
  }
  return node ?? {};
}

/** `{kind, nullable, enum, items, properties, …}`; a union with null is a nullable kind, any other union is `any`. */
export function shape(given, root) {
  let node = resolved(given, root);
  let nullable = false;
  const union = node.anyOf ?? node.oneOf;
  if (union) {
    const others = union.map((one) => resolved(one, root)).filter((one) => one.type !== "null");
    nullable = others.length < union.length;
    node = others.length === 1 ? { ...node, ...others[0] } : { ...node, type: undefined };
  }
  let type = node.type;
  if (Array.isArray(type)) {
    nullable ||= type.includes("null");
    const others = type.filter((one) => one !== "null");
    type =
      others.length === 1 ? others[0] : others.includes("number") && others.includes("integer") ? "number" : undefined;
  }
  if (!type && node.properties) type = "object";
  if (!type && node.enum?.every((one) => typeof one === "string" || one === null)) type = "string";
  const choices = node.enum?.filter((one) => one !== null);
  const isTime = node["x-worm-type"] === "datetime" || node.format === "date-time" || node.format === "date";
  const kind = type === "string" && isTime ? "datetime" : (type ?? "any");
  return { ...node, kind, nullable, enum: choices?.length ? choices : null, model: node["x-worm-ref"] ?? null };
}

/** Every field that a query can name: top level first to last, objects with their members below them. */
export function fieldsOf(schema) {
  const found = [{ path: "id", kind: "string", required: true, enum: null }];
  const visit = (node, prefix, depth) => {
    const wanted = new Set(node.required ?? []);
    for (const [name, child] of Object.entries(node.properties ?? {})) {
      const path = prefix ? `${prefix}.${name}` : name;
      if (path === "id" || name.includes(".")) continue;
      const field = shape(child, schema);
      const items = field.kind === "array" ? shape(field.items, schema) : null;
      found.push({
        path,
        kind: field.kind,
        enum: field.enum ?? items?.enum ?? null,
        itemKind: items?.kind ?? null,
        nullable: field.nullable,
        required: wanted.has(name),
        description: field.description ?? "",
        model: field.model ?? items?.model ?? null,
      });
      if (field.kind === "object" && depth < DEPTH) visit(field, path, depth + 1);
    }
  };
  visit(resolved(schema, schema), "", 1);
  const times = ["createdAt", "updatedAt"].map((path) => ({ path, kind: "datetime", required: false, enum: null }));
  return [...found.filter((field) => !times.some((one) => one.path === field.path)), ...times];
}

/** Where nobody has chosen columns: scalars of the top level, and when it was changed, early enough to be in sight. */
export function defaultColumns(fields) {
  const plain = fields.filter((one) => !one.path.includes(".") && one.kind !== "object" && one.path !== "id");
  const times = plain.filter((one) => one.path === "updatedAt");
  const others = plain.filter((one) => !["createdAt", "updatedAt"].includes(one.path)).slice(0, 7);
  return [...others.slice(0, 4), ...times, ...others.slice(4)].map((one) => one.path);
}

/** A new document: declared defaults, and nothing else. */
export function emptyDocument(schema) {
  const defaults = Object.entries(schema.properties ?? {}).filter(
    ([, node]) => resolved(node, schema).default !== undefined,
  );
  return Object.fromEntries(defaults.map(([name, node]) => [name, structuredClone(resolved(node, schema).default)]));
}
