// The API's forms, as docs/operating/console.md has them, and how it is asked.

export interface Column { name: string; type: string }
export interface Rows { sql: string; columns: Column[]; rows: (string | null)[][]; cut: boolean }
export interface Problem {
  code: string;
  message: string;
  detail?: string;
  hint?: string;
  position?: number;
  retry_after?: number;
}
export type Part = Rows | { missing: string } | { error: Problem };
export interface Result { tag: string; columns: Column[]; rows: (string | null)[][]; cut: boolean }
export interface Notice { severity: string; code: string; message: string; detail: string | null; hint: string | null }
export interface Answer {
  results: Result[];
  left_out: number;
  notices: Notice[];
  error: Problem | null;
  rolled_back: boolean;
  took_ms: number;
  cost: string;
}

export function isRows(part: Part): part is Rows {
  return "rows" in part;
}

/** What the names of kept texts begin with; app.ts forgets them by it. */
export const KEPT = "telesto-sql ";

const meta = (name: string): string =>
  document.querySelector<HTMLMetaElement>(`meta[name="${name}"]`)?.content ?? "";

export const nonce = (): string => meta("style-nonce");

/** Where the tab keeps this role's SQL text: another one that logs in there must not find it. */
export const kept = (): string => `${KEPT}${document.querySelector(".who .role")?.textContent ?? ""}`;

async function read<T>(response: Response): Promise<T> {
  if (response.status === 401) {
    location.assign(`/login?next=${encodeURIComponent(location.pathname + location.search)}`);
  }
  const body = (await response.json()) as T | { error: Problem };
  if (!response.ok) {
    throw (body as { error: Problem }).error;
  }
  return body as T;
}

export async function get<T>(path: string, headers: Record<string, string> = {}): Promise<T> {
  return read<T>(await fetch(`/api/v1${path}`, { headers: { accept: "application/json", ...headers } }));
}

export async function post<T>(path: string, body: unknown): Promise<T> {
  return read<T>(
    await fetch(`/api/v1${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-csrf-token": meta("csrf") },
      body: JSON.stringify(body),
    }),
  );
}
