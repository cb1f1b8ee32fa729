// Filters and sorts the samples inside a report, as the viewer's server does.

import { conditions, type Condition } from "./ranges";
import type { Page, Query, Row } from "./types";

/** Rows of a page of the list in a report. */
const PAGE_ROWS = 12;

export const FIRST: Query = {
  run: "",
  order: "",
  text: "",
  correct: "",
  cascade: 0,
  where: "",
  sort: "name",
  descending: false,
  page: 0,
  whole: true,
};

export function pick(rows: Row[], query: Query): Page {
  const where = conditions(query.where);
  const kept = rows.filter((row) => fits(row, query, where));
  kept.sort((a, b) => compare(a, b, query));
  const start = query.page * PAGE_ROWS;
  return { total: kept.length, rows: kept.slice(start, start + PAGE_ROWS), size: PAGE_ROWS, state: "whole" };
}

function fits(row: Row, query: Query, where: Condition[]): boolean {
  if (query.run && row.run !== query.run) return false;
  if (query.order && row.order !== query.order) return false;
  if (query.correct && verdict(row) !== query.correct) return false;
  if (row.cascade < query.cascade) return false;
  if (!where.every((condition) => condition(row))) return false;
  const wanted = query.text.trim().toLowerCase();
  return !wanted || `${row.name}\n${row.text ?? ""}`.toLowerCase().includes(wanted);
}

function verdict(row: Row): Query["correct"] {
  return row.correct === null ? "none" : row.correct ? "yes" : "no";
}

/** Undefined values come last in both directions. */
function compare(a: Row, b: Row, query: Query): number {
  const [left, right] = [a[query.sort], b[query.sort]];
  if (left === null || right === null) return Number(left === null) - Number(right === null);
  const turn = query.descending ? -1 : 1;
  if (left < right) return -turn;
  if (left > right) return turn;
  return a.name < b.name ? -1 : a.name > b.name ? 1 : a.label < b.label ? -1 : 1;
}
