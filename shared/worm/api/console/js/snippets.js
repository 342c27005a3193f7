// What a view shows, as a program would ask for it: with curl, in Python, on the command line, as far as there is a way.
// The token is never in a snippet: it is the variable WORM_TOKEN.
import { origin } from "./address.js";

/** The address of the database for Python and the command line, as `GET /v1` says it (null where it does not). */
let database = "s3://bucket/prefix";
export const setDatabase = (url) => (database = url || database);

export const shell = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${String(text).replace(/'/g, `'\\''`)}'`);

/** A JSON value as Python source. */
export function python(value) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object")
    return `{${Object.entries(value)
      .map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`)
      .join(", ")}}`;
  return JSON.stringify(value);
}

const present = (value) => value !== null && value !== undefined && value !== "";

function curl(method, path, { query = {}, body, type, headers = {} } = {}) {
  const given = Object.entries(query).filter(([, value]) => present(value));
  const isGet = method === "GET";
  const target = isGet || !given.length ? origin + path : `${origin}${path}?${new URLSearchParams(given)}`;
  const lines = [`curl ${isGet ? (given.length ? "--get " : "") : `--request ${method} `}${shell(target)}`];
  lines.push('--header "Authorization: Bearer $WORM_TOKEN"');
  for (const [name, value] of Object.entries(headers)) lines.push(`--header ${shell(`${name}: ${value}`)}`);
  if (isGet) for (const [name, value] of given) lines.push(`--data-urlencode ${shell(`${name}=${value}`)}`);
  if (body !== undefined) {
    lines.push(`--header ${shell(`Content-Type: ${type ?? "application/json"}`)}`);
    lines.push(`--data ${shell(JSON.stringify(body))}`);
  }
  return lines.join(" \\\n  ");
}

function inPython(lines, branch) {
  const session = branch ? [`    db = db.branch(${python(branch)})`] : [];
  return [
    "import worm",
    "",
    `with worm.connect(${python(database)}) as db:`,
    ...session,
    ...lines.map((line) => `    ${line}`),
  ].join("\n");
}

function keywords(options) {
  return Object.entries(options)
    .filter(([, value]) => present(value))
    .map(([name, value]) => `${name}=${python(value)}`)
    .join(", ");
}

/** Options as `--name value`; a value that starts with a hyphen is joined by `=`. */
function worm(command, positional, options = {}) {
  const words = [
    `worm ${command}`,
    ...positional.map((one) => (String(one).startsWith("-") ? `-- ${shell(one)}` : shell(one))),
  ];
  const named = Object.entries({ ...options, url: database })
    .filter(([, value]) => present(value) && value !== false)
    .map(([name, value]) => {
      if (value === true) return `--${name}`;
      return String(value).startsWith("-") ? `--${name}=${shell(value)}` : `--${name} ${shell(value)}`;
    });
  return `${words[0]} ${[...words.slice(1), ...named].join(" ")}`.replace(/ +/g, " ").trim();
}

// A document's id comes after the options, so that one that starts with a hyphen can follow `--`.
function wormOne(command, model, id, options = {}) {
  const last = id === "_" ? [] : [id.startsWith("-") ? `-- ${shell(id)}` : shell(id)];
  if (!id.startsWith("-")) return worm(command, id === "_" ? [model] : [model, id], options);
  return `${worm(command, [], options)} ${shell(model)} ${last[0]}`;
}

const documents = (model, ...rest) =>
  ["", "v1", "models", model, "documents", ...rest].map(encodeURIComponent).join("/");
const isEmpty = (value) => !value || Object.keys(value).length === 0;

const moment = (at) => (present(at) && /^\d+$/.test(at) ? Number(at) : at);

export const snippets = {
  models: () => ({
    curl: curl("GET", "/v1/models"),
    python: inPython(["for name in db.schema.models:", "    print(name, db.model(name).count())"]),
    cli: worm("table list", []),
  }),

  query({ model, filter, sort, select, limit, cursor, at, branch, explain }) {
    const where = isEmpty(filter) ? null : filter;
    const order = sort ? sort.split(",") : null;
    const fields = select ? select.split(",") : null;
    const verb = explain ? "explain" : "find_all";
    const analyze = explain === "analyze" ? true : null;
    const options = keywords({ filter: where, sort: order, select: fields, limit, cursor, at: moment(at), analyze });
    const shown = explain ? [`print(plan.shape())`] : ["for row in page:", "    print(row)"];
    return {
      curl: curl("GET", documents(model), {
        query: { filter: where && JSON.stringify(where), sort, select, limit, cursor, at, branch, explain },
      }),
      python: inPython(
        [`${explain ? "plan" : "page"} = db.model(${python(model)}).${verb}(${options})`, ...shown],
        branch,
      ),
      cli: worm("table query", [model], {
        where: where && JSON.stringify(where),
        sort,
        select,
        limit,
        cursor,
        at,
        branch,
        explain: explain === "true",
        analyze: explain === "analyze",
      }),
    };
  },

  document({ model, id, branch, operations, version, etag, reason }) {
    if (!operations?.length)
      return {
        curl: curl("GET", documents(model, id), { query: { branch } }),
        python: inPython([`document = db.model(${python(model)}).get(${python(id)})`, "print(document)"], branch),
        cli: wormOne("get", model, id, { branch }),
      };
    const dotted = (one) => one.path.slice(1).replace(/\//g, ".").replace(/~1/g, "/").replace(/~0/g, "~");
    const set = operations.filter((one) => one.op !== "remove").map((one) => [dotted(one), one.value]);
    const unset = operations.filter((one) => one.op === "remove").map((one) => [dotted(one), true]);
    const update = {
      ...(set.length ? { $set: Object.fromEntries(set) } : {}),
      ...(unset.length ? { $unset: Object.fromEntries(unset) } : {}),
    };
    const options = keywords({ if_version: version, reason });
    return {
      curl: curl("PATCH", documents(model, id), {
        query: { branch },
        headers: { "If-Match": etag, ...(reason ? { "Worm-Reason": encodeURIComponent(reason) } : {}) },
        body: operations,
        type: "application/json-patch+json",
      }),
      python: inPython(
        [`db.model(${python(model)}).update(${[python(id), python(update), options].filter(Boolean).join(", ")})`],
        branch,
      ),
      cli: `# There is no command that changes single fields: this replaces the document with the file.\n${worm("put", [model, "document.json"], { id: id === "_" ? null : id, branch, reason })}`,
    };
  },

  create({ model, document, id, branch }) {
    const named = id ? { id, ...document } : document;
    return {
      curl: curl("POST", documents(model), { query: { branch }, body: named }),
      python: inPython([`db.model(${python(model)}).insert(${python(named)})`], branch),
      cli: `echo ${shell(JSON.stringify(named))} |\n  ${worm("put", [model], { branch })}`,
    };
  },

  history: ({ model, id, branch, limit }) => ({
    curl: curl("GET", documents(model, id, "history"), { query: { limit, branch } }),
    python: inPython(
      [
        `for entry in db.model(${python(model)}).get_history(${[python(id), keywords({ limit })].filter(Boolean).join(", ")}):`,
        "    print(entry.seq, entry.op, entry.ts, entry.actor, entry.reason, entry.diff)",
      ],
      branch,
    ),
    cli: wormOne("history", model, id, { limit, branch }),
  }),

  rollback: ({ model, id, seq, branch, version, etag }) => ({
    curl: curl("POST", documents(model, id, "rollback"), {
      query: { branch },
      headers: etag ? { "If-Match": etag } : {},
      body: { toSeq: seq },
    }),
    python: inPython(
      [`db.model(${python(model)}).rollback(${python(id)}, ${keywords({ to_seq: seq, if_version: version })})`],
      branch,
    ),
    cli: wormOne("rollback", model, id, { to: seq, branch }),
  }),

  trash: ({ model, branch }) => ({
    curl: curl("GET", "/v1/trash", { query: { model, branch } }),
    python: inPython(
      model
        ? [`print(db.model(${python(model)}).list_trashed())`]
        : [
            "for name, model in db.schema.models.items():",
            `    if model.soft_delete${branch ? " and model.space" : ""}:`,
            "        print(name, db.model(name).list_trashed())",
          ],
      branch,
    ),
    cli: worm("trash list", model ? [model] : [], { branch }),
  }),

  branches: () => ({
    curl: curl("GET", "/v1/branches"),
    python: inPython(["print(db.branches())"]),
    cli: worm("branch list", []),
  }),

  compared: ({ branch, into }) => ({
    curl: [
      curl("GET", `/v1/branches/${encodeURIComponent(branch)}/diff`, { query: { into } }),
      curl("POST", `/v1/branches/${encodeURIComponent(branch)}/merge`, {
        body: { into, policy: "fail", dryRun: true },
      }),
    ].join("\n\n"),
    python: inPython([
      `for change in db.diff(${python(branch)}, into=${python(into)}):`,
      "    print(change.model, change.id, change.change, change.is_conflict, change.fields)",
      `db.merge(${python(branch)}, into=${python(into)}, policy="fail", dry_run=True)`,
    ]),
    cli: [
      worm("branch diff", [branch], { into }),
      worm("branch merge", [branch], { into, policy: "fail", "dry-run": true }),
    ].join("\n"),
  }),

  changes: ({ model }) => ({
    curl: `${curl("GET", "/v1/changes", { query: { model }, headers: { Accept: "text/event-stream" } })} --no-buffer`,
    python: inPython([
      `cursor = db.changes(${keywords({ model })}).cursor`,
      "while True:",
      `    found = db.changes(after=cursor, ${model ? `${keywords({ model })}, ` : ""}wait=20)`,
      "    for entry in found:",
      "        print(entry.ts, entry.model, entry.id, entry.op, entry.actor)",
      "    cursor = found.cursor",
    ]),
    cli: worm("history", model ? [model] : [], { limit: 50 }),
  }),

  health: () => ({
    curl: curl("GET", "/v1/health"),
    cli: worm("doctor", []),
  }),

  why: ({ key }) => ({
    curl: curl("GET", "/v1/why", { query: { key } }),
    python: inPython([`print(db.why(${python(key)}))`]),
    cli: worm("why", [key]),
  }),
};
