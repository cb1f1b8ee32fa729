// The reader's place as the part of the address after '#'; a copied address leads back to it.

import { FIRST } from "./query";
import { COLOURS, type Colour } from "./scales";
import type { Query } from "./types";

export interface Place {
  sample: string | null;
  run: string;
  a: string;
  b: string;
  /** Passes done; null is the finished text. */
  pass: number | null;
  colour: Colour;
}

export const NOWHERE: Place = { sample: null, run: "", a: "", b: "", pass: null, colour: "confidence" };

export function write(place: Place): string {
  if (place.sample === null) return "";
  const parts = new URLSearchParams({ sample: place.sample });
  if (place.run) parts.set("run", place.run);
  if (place.a) parts.set("a", place.a);
  if (place.b) parts.set("b", place.b);
  if (place.pass !== null) parts.set("step", String(place.pass));
  if (place.colour !== NOWHERE.colour) parts.set("colour", place.colour);
  return `#${parts.toString()}`;
}

export function read(hash: string): Place {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const pass = Number.parseInt(parts.get("step") ?? "", 10);
  return {
    sample: parts.get("sample"),
    run: parts.get("run") ?? "",
    a: parts.get("a") ?? "",
    b: parts.get("b") ?? "",
    pass: Number.isFinite(pass) && pass >= 0 ? pass : null,
    colour: COLOURS.find((item) => item.id === parts.get("colour"))?.id ?? NOWHERE.colour,
  };
}

const SORTS: Query["sort"][] = ["name", "label", "mean", "var", "gap", "passes", "cascade", "correct", "n"];
const VERDICTS: Query["correct"][] = ["", "yes", "no", "none"];

/** The query of the list, without the values that it has when the page opens. */
export function writeList(query: Query): string {
  const parts = new URLSearchParams();
  for (const name of ["text", "where", "run", "order", "correct", "cascade", "sort", "descending", "page"] as const) {
    if (query[name] !== FIRST[name]) parts.set(name, String(query[name]));
  }
  const text = parts.toString();
  return text && `#list&${text}`;
}

export function readList(hash: string): Query {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const count = (name: string): number => Math.max(0, Number.parseInt(parts.get(name) ?? "0", 10) || 0);
  const text = (name: string): string => parts.get(name) ?? "";
  if (!parts.has("list")) return { ...FIRST };
  return {
    ...FIRST,
    text: text("text"),
    where: text("where"),
    run: text("run"),
    order: text("order"),
    correct: VERDICTS.find((item) => item === text("correct")) ?? "",
    cascade: count("cascade"),
    sort: SORTS.find((item) => item === text("sort")) ?? FIRST.sort,
    descending: (parts.get("descending") ?? String(FIRST.descending)) === "true",
    page: count("page"),
  };
}

/** Whether an address names a sample or the list; other anchors belong to the page. */
export function isOurs(hash: string): boolean {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  return parts.size === 0 || parts.has("sample") || parts.has("list");
}
