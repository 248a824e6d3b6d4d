/** A recipe as a form: every value is the text that a recipe would have, "" where it is unset. */

export interface Field {
  key: string;
  kind: "boolean" | "integer" | "number" | "text" | "choice" | "choices" | "lines" | "toml";
  description: string;
  default: unknown;
  default_text: string | null;
  is_optional: boolean;
  choices: { value: string; about: string }[];
  at_least?: number;
  more_than?: number;
  at_most?: number;
  less_than?: number;
}
export interface Section {
  name: string;
  about: string;
  keys: Field[];
}
export interface Form {
  sections: Section[];
  common: string[];
  shipped: { name: string; about: string }[];
}
export interface Complaint {
  text: string;
  keys: string[];
}
export type Entries = Record<string, string>;

/** A text as a recipe has it, in quotes. */
export function quote(text: string): string {
  return JSON.stringify(text).replaceAll("\x7f", "\\u007f");
}

/** A quoted text or a list of them, as it is shown; the text itself where it is neither. */
export function unquote<T>(entry: string, otherwise: T): T | string {
  try {
    return JSON.parse(entry) as T;
  } catch {
    return entry || otherwise;
  }
}

/** The lines of a list of texts. */
export function toLines(entry: string): string {
  const value: unknown = unquote(entry, []);
  return Array.isArray(value) ? value.join("\n") : String(value);
}

/** A list of texts, of which each is a line; unset where there is none. */
export function fromLines(text: string): string {
  const lines = text.split("\n").map((line) => line.trim()).filter(Boolean);
  return lines.length ? `[${lines.map(quote).join(", ")}]` : "";
}

/** What differs from the recipe that the form started with, as the server takes it. */
export function findChanges(entries: Entries, start: Entries): { changes: Entries; unset: string[] } {
  const keys = [...new Set([...Object.keys(entries), ...Object.keys(start)])];
  const changed = keys.filter((key) => (entries[key] ?? "") !== (start[key] ?? ""));
  return {
    changes: Object.fromEntries(changed.filter((key) => entries[key]).map((key) => [key, entries[key]])),
    unset: changed.filter((key) => !entries[key]),
  };
}

/** The bounds of a number in words: "1 to 1,000", "at least 0"; "" where there are none worth saying. */
export function describeBounds(field: Field): string {
  const large = 1e9;
  const low = field.at_least ?? field.more_than;
  const high = field.at_most ?? field.less_than;
  const parts: string[] = [];
  if (low !== undefined && (low === 0 || Math.abs(low) > 1e-9)) {
    parts.push(`${field.more_than === undefined ? "at least" : "more than"} ${low}`);
  }
  if (high !== undefined && high < large) {
    parts.push(`${field.less_than === undefined ? "at most" : "less than"} ${high.toLocaleString("en")}`);
  }
  return parts.join(", ");
}

/** An id of the element of a key. */
export function fieldId(key: string): string {
  return `key-${key.replace(".", "-")}`;
}
