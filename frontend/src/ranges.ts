// Conditions on the numbers of the list: "var > 0.5, mean < -1". The viewer's server parses the same text.

import type { Row } from "./types";

const COLUMNS = { var: "var", mean: "mean", gap: "gap", passes: "passes", eos: "cascade", n: "n" } as const;
const ONE = /^\s*([a-z]+)\s*(<=|>=|<|>|=|≤|≥)\s*([-−+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?)\s*$/i;
const WAYS: Record<string, (a: number, b: number) => boolean> = {
  "<": (a, b) => a < b,
  "<=": (a, b) => a <= b,
  "≤": (a, b) => a <= b,
  ">": (a, b) => a > b,
  ">=": (a, b) => a >= b,
  "≥": (a, b) => a >= b,
  "=": (a, b) => a === b,
};

export type Condition = (row: Row) => boolean;

/** Return the conditions of a text, all of which must hold; an unknown value fulfils none. */
export function conditions(text: string): Condition[] {
  const parts = text.split(/[,;&]|\band\b/i).filter((part) => part.trim());
  return parts.map((part) => {
    const [, name, way, number] = ONE.exec(part) ?? [];
    const column = COLUMNS[name?.toLowerCase() as keyof typeof COLUMNS];
    if (!column || !way || number === undefined) {
      throw new Error(`'${part.trim().slice(0, 40)}' is not a condition; write for example: var > 0.5, mean < -1 (${Object.keys(COLUMNS).join(", ")})`);
    }
    const value = Number(number.replace("−", "-"));
    return (row) => row[column] !== null && WAYS[way]!(row[column], value);
  });
}
