// The list of samples inside a file: the same filters and sorting as the viewer's server, on few rows.

import { PAGE_ROWS, type Page, type Query, type Row } from "./types";

export const FIRST: Query = {
  run: "",
  order: "",
  text: "",
  correct: "",
  cascade: 0,
  sort: "var",
  descending: true,
  page: 0,
  whole: true,
};

export function pick(rows: Row[], query: Query): Page {
  const kept = rows.filter((row) => fits(row, query));
  kept.sort((a, b) => compare(a, b, query));
  const start = query.page * PAGE_ROWS;
  return { total: kept.length, rows: kept.slice(start, start + PAGE_ROWS), state: "whole" };
}

function fits(row: Row, query: Query): boolean {
  if (query.run && row.run !== query.run) return false;
  if (query.order && row.order !== query.order) return false;
  if (query.correct && verdict(row) !== query.correct) return false;
  if (row.cascade < query.cascade) return false;
  const wanted = query.text.trim().toLowerCase();
  return !wanted || `${row.name}\n${row.text ?? ""}`.toLowerCase().includes(wanted);
}

function verdict(row: Row): Query["correct"] {
  return row.correct === null ? "none" : row.correct ? "yes" : "no";
}

/** Undefined values stand last, whichever way the list is sorted. */
function compare(a: Row, b: Row, query: Query): number {
  const [left, right] = [a[query.sort], b[query.sort]];
  if (left === null || right === null) return Number(left === null) - Number(right === null);
  const turn = query.descending ? -1 : 1;
  if (left < right) return -turn;
  if (left > right) return turn;
  return a.name < b.name ? -1 : a.name > b.name ? 1 : a.label < b.label ? -1 : 1;
}
