// Samples worth a look, found by rule in the list: where orders part, and which two of them show it.

import { fixed } from "./numbers";
import { FIRST } from "./query";
import type { Query, Row, Sample, Source, Trace } from "./types";

export interface Lead {
  title: string;
  what: string;
  row: Row;
  /** The ids of the two traces to put side by side. */
  pair(sample: Sample): [string, string];
}

type Ask = (part: Partial<Query>) => Promise<Row[]>;

/** Return what there is of four kinds, each about another sample. */
export async function findLeads(source: Source, graded: boolean): Promise<Lead[]> {
  const out: Lead[] = [];
  const isNew = (row: Row): boolean => !out.some((lead) => lead.row.sample_id === row.sample_id);
  const ask: Ask = async (part) => (await source.list({ ...FIRST, ...part, whole: true })).rows.filter(isNew);
  for (const kind of graded ? [parting, furthest, sealed, uneven] : [furthest, sealed, uneven]) {
    const lead = await kind(ask);
    if (lead) out.push(lead);
  }
  return out;
}

/** One order is right and another is wrong. */
async function parting(ask: Ask): Promise<Lead | null> {
  const by: Partial<Query> = { sort: "name", descending: false };
  const [right, wrong] = [await ask({ ...by, correct: "yes" }), await ask({ ...by, correct: "no" })];
  for (const good of right) {
    const bad = wrong.find((row) => row.sample_id === good.sample_id && row.run === good.run && row.order !== good.order);
    if (bad) return { title: "One order is right, another wrong", what: `✓ ${good.label}, ✗ ${bad.label}`, row: good, pair: () => [good.id, bad.id] };
  }
  return null;
}

/** The means of the orders that the gap compares lie farthest apart. */
async function furthest(ask: Ask): Promise<Lead | null> {
  const [row] = await ask({ sort: "gap" });
  if (!row?.gap) return null;
  const pair = (sample: Sample): [string, string] => ends(beside(sample, row).filter(isCompared), (trace) => trace.stats.mean);
  return { title: "The orders differ most", what: `mean log q, by ${fixed(row.gap, 2)} nats per token`, row, pair };
}

/** The end was committed before the text. */
async function sealed(ask: Ask): Promise<Lead | null> {
  const [row] = await ask({ sort: "cascade" });
  if (!row || row.cascade < 2) return null;
  const pair = (sample: Sample): [string, string] => [row.id, ends(beside(sample, row), (trace) => trace.cascade)[1]];
  return { title: "The end is written first", what: `${row.cascade} EOS from right to left, ${row.label}`, row, pair };
}

/** A few steps carry most of the cost. */
async function uneven(ask: Ask): Promise<Lead | null> {
  const [row] = await ask({ sort: "var" });
  if (!row?.var) return null;
  const pair = (sample: Sample): [string, string] => [row.id, ends(beside(sample, row), (trace) => trace.stats.var)[1]];
  return { title: "The most uneven path", what: `Var ${fixed(row.var, 2)} nats², ${row.label}`, row, pair };
}

/** Whether a trace counts for the gap: one token per pass, and its sum is a likelihood or an estimate of one. */
function isCompared(trace: Trace): boolean {
  return (trace.likelihood === "exact" || trace.likelihood === "estimate") && trace.n_passes >= trace.reveals.position.length;
}

/** The traces of the same run, task and temperature as a row's. */
function beside(sample: Sample, row: Row): Trace[] {
  const own = sample.traces.find((trace) => trace.id === row.id)?.key;
  return sample.traces.filter(({ key }) => own && key.run === own.run && key.task === own.task && key.temperature === own.temperature);
}

/** The ids of the traces with the largest and the smallest value. */
function ends(traces: Trace[], value: (trace: Trace) => number | null): [string, string] {
  const known = traces.filter((trace) => value(trace) !== null).sort((a, b) => value(b)! - value(a)!);
  return [known[0]?.id ?? "", known.at(-1)?.id ?? ""];
}
