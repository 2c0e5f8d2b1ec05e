// The SQL page: the editor with completion, runs, their results, plans as trees.
import { autocompletion, closeBrackets, closeBracketsKeymap, completionKeymap } from "@codemirror/autocomplete";
import { defaultKeymap, history, historyKeymap } from "@codemirror/commands";
import { PostgreSQL, sql } from "@codemirror/lang-sql";
import { bracketMatching, HighlightStyle, syntaxHighlighting } from "@codemirror/language";
import { Compartment, EditorState } from "@codemirror/state";
import { drawSelection, EditorView, keymap, lineNumbers, placeholder } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { get, isRows, kept, nonce, post, type Answer, type Part, type Problem, type Result } from "./api";


function need<T extends HTMLElement>(id: string): T {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as T;
}

function make<K extends keyof HTMLElementTagNameMap>(
  name: K,
  text?: string,
  set: Partial<HTMLElementTagNameMap[K]> = {},
): HTMLElementTagNameMap[K] {
  const made = Object.assign(document.createElement(name), set);
  if (text !== undefined) made.textContent = text;
  return made;
}

const form = need<HTMLFormElement>("sql-form");
const area = need<HTMLTextAreaElement>("sql-text");
const results = need<HTMLDivElement>("sql-results");
const status = need<HTMLParagraphElement>("sql-status");
const cancel = need<HTMLButtonElement>("sql-cancel");
const starts = ["sql-run", "sql-explain", "sql-analyze"].map((id) => need<HTMLButtonElement>(id));
const choice = (id: string): string => need<HTMLSelectElement>(id).value;

if (area.value === "") area.value = sessionStorage.getItem(kept()) ?? "";

// The editor, in the text area's place.
const highlight = HighlightStyle.define([
  { tag: tags.keyword, color: "var(--keyword)", fontWeight: "600" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--string)" },
  { tag: [tags.number, tags.bool, tags.null], color: "var(--literal)" },
  { tag: tags.comment, color: "var(--quiet)", fontStyle: "italic" },
  { tag: tags.typeName, color: "var(--read)" },
]);
const language = new Compartment();
const run = (): boolean => {
  void start("run");
  return true;
};
const view = new EditorView({
  state: EditorState.create({
    doc: area.value,
    extensions: [
      EditorView.cspNonce.of(nonce()),
      lineNumbers(),
      history(),
      drawSelection(),
      bracketMatching(),
      closeBrackets(),
      autocompletion(),
      placeholder("SELECT …"),
      EditorView.lineWrapping,
      EditorView.contentAttributes.of({ "aria-label": "SQL" }),
      syntaxHighlighting(highlight),
      language.of(sql({ dialect: PostgreSQL, upperCaseKeywords: true })),
      keymap.of([
        { key: "Mod-Enter", run },
        ...closeBracketsKeymap,
        ...completionKeymap,
        ...historyKeymap,
        ...defaultKeymap,
      ]),
    ],
  }),
});
area.hidden = true;
area.after(view.dom);
view.focus();

// Completion knows the tables and columns that this role may see.
void get<{ columns: Part }>("/columns").then(({ columns }) => {
  if (!isRows(columns)) return;
  const schema: Record<string, string[]> = {};
  for (const [of, table, name] of columns.rows) {
    if (!of || !table || !name) continue;
    const shown = of === "public" || of === "pg_catalog" ? table : `${of}.${table}`;
    (schema[shown] ??= []).push(name);
  }
  const known = sql({ dialect: PostgreSQL, schema, upperCaseKeywords: true, defaultSchema: "public" });
  view.dispatch({ effects: language.reconfigure(known) });
}, () => undefined);

let running: string | null = null;

form.addEventListener("submit", (event) => {
  event.preventDefault();
  void start("run");
});
need("sql-explain").addEventListener("click", () => void start("explain"));
need("sql-analyze").addEventListener("click", () => void start("analyze"));
cancel.addEventListener("click", () => {
  if (running) void post("/sql/cancel", { id: running }).catch(() => undefined);
});

async function start(what: "run" | "explain" | "analyze"): Promise<void> {
  if (running) return;
  const selected = view.state.sliceDoc(view.state.selection.main.from, view.state.selection.main.to);
  const text = selected.trim() === "" ? view.state.doc.toString() : selected;
  if (text.trim() === "") {
    status.textContent = "There is nothing to run.";
    return;
  }
  sessionStorage.setItem(kept(), view.state.doc.toString());
  const heads = { run: "", explain: "EXPLAIN (FORMAT JSON) ", analyze: "EXPLAIN (ANALYZE, FORMAT JSON) " };
  running = crypto.randomUUID();
  cancel.disabled = false;
  for (const button of starts) button.disabled = true;
  status.textContent = "Running …";
  results.replaceChildren();
  try {
    const answer = await post<Answer>("/sql", {
      sql: heads[what] + text,
      // A plan is made without running anything; further statements behind the first would be run.
      mode: what === "explain" ? "read_only" : choice("sql-mode"),
      id: running,
      max_rows: Number(choice("sql-rows")),
      timeout_ms: Number(choice("sql-time")),
    });
    show(answer, what !== "run");
  } catch (problem) {
    status.textContent = "Not run.";
    results.replaceChildren(told(problem));
  } finally {
    running = null;
    cancel.disabled = true;
    for (const button of starts) button.disabled = false;
  }
}

function told(problem: unknown): HTMLElement {
  const box = make("div", undefined, { className: "problem" });
  box.setAttribute("role", "alert");
  const known = problem as Partial<Problem>;
  const head = make("p");
  head.append(make("strong", known.message ?? String(problem)), " ", make("span", known.code ?? "", { className: "code" }));
  box.append(head);
  for (const more of [known.detail, known.hint]) if (more) box.append(make("p", more));
  if (known.position) box.append(make("p", `at character ${known.position}`, { className: "note" }));
  return box;
}

function show(answer: Answer, plan: boolean): void {
  const parts: HTMLElement[] = [];
  for (const result of answer.results) {
    parts.push((plan && tree(result)) || table(result));
  }
  if (answer.left_out > 0) parts.push(make("p", `${answer.left_out} more results are not shown.`, { className: "note" }));
  for (const notice of answer.notices) {
    parts.push(make("p", `${notice.severity}: ${notice.message}${notice.hint ? ` ${notice.hint}` : ""}`, { className: "notice" }));
  }
  if (answer.rolled_back) {
    parts.push(make("p", "The transaction was left open and was rolled back: end it with COMMIT in the same run.", { className: "notice" }));
  }
  if (answer.error) parts.push(told(answer.error));
  results.replaceChildren(...parts);
  const took = answer.took_ms < 10 ? answer.took_ms.toFixed(1) : answer.took_ms.toFixed(0);
  status.textContent = `${answer.error ? "Failed" : "Done"} in ${took} ms${answer.cost ? ` · ${answer.cost}` : ""}`;
}

const NUMBERS = /^(smallint|integer|bigint|numeric|real|double precision|oid)/;

function table(result: Result): HTMLElement {
  if (result.columns.length === 0) return make("p", result.tag, { className: "tag" });
  const box = make("div", undefined, { className: "scroll", tabIndex: 0 });
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", `Result: ${result.tag}`);
  const made = make("table");
  made.append(make("caption", result.cut ? `${result.tag}, cut: there are more rows` : result.tag));
  const head = make("tr");
  const numbers = result.columns.map((column) => NUMBERS.test(column.type) && !column.type.endsWith("[]"));
  result.columns.forEach((column, place) => {
    const cell = make("th", column.name, { scope: "col", title: column.type });
    if (numbers[place]) cell.className = "number";
    head.append(cell);
  });
  made.createTHead().append(head);
  const body = made.createTBody();
  for (const row of result.rows) {
    const line = body.insertRow();
    row.forEach((value, place) => {
      const cell = line.insertCell();
      if (numbers[place]) cell.className = "number";
      if (value === null) cell.append(make("span", "NULL", { className: "null" }));
      else cell.textContent = value;
    });
  }
  box.append(made);
  return box;
}

type Json = null | boolean | number | string | Json[] | { [name: string]: Json };

/** The plan as a tree, if the result is one. */
function tree(result: Result): HTMLElement | null {
  try {
    const parsed = JSON.parse(result.rows.map((row) => row[0] ?? "").join("\n")) as Json;
    const top = Array.isArray(parsed) ? parsed[0] : parsed;
    if (typeof top !== "object" || top === null || Array.isArray(top)) return null;
    const { Plan: plan, ...facts } = top;
    const box = make("section", undefined, { className: "plan" });
    box.append(make("h2", "Plan"), list(facts));
    const root = make("ul");
    if (plan !== undefined) root.append(node(plan));
    box.append(root);
    return box;
  } catch {
    return null;
  }
}

function list(facts: { [name: string]: Json }): HTMLElement {
  const made = make("dl");
  for (const [name, value] of Object.entries(facts)) {
    // What says nothing here: PostgreSQL's tools want to see it in the JSON.
    if (value === null || value === "" || value === false || name === "Parent Relationship") continue;
    const pair = make("div");
    pair.append(make("dt", name), make("dd", typeof value === "object" ? JSON.stringify(value) : String(value)));
    made.append(pair);
  }
  return made;
}

function node(plan: Json): HTMLElement {
  const item = make("li");
  if (typeof plan !== "object" || plan === null || Array.isArray(plan)) {
    item.textContent = String(plan);
    return item;
  }
  const { "Node Type": kind, Plans: children, ...facts } = plan;
  item.append(make("strong", String(kind ?? "Plan")), list(facts));
  if (Array.isArray(children) && children.length > 0) {
    const below = make("ul");
    below.append(...children.map(node));
    item.append(below);
  }
  return item;
}
