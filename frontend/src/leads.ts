// Samples to start with, found by rule in the list, each with the two traces that show its point.

import { fixed } from "./numbers";
import { FIRST } from "./query";
import type { Query, Row, Sample, Source, Trace } from "./types";

export interface Lead {
  title: string;
  what: string;
  row: Row;
  /** The ids of the two traces to put side by side. */
  pair(sample: Sample): [string, string];
  /** The passes done when it opens; the finished text by default. */
  pass?(sample: Sample): number | null;
}

/** Rows of the list, largest value first unless the part says otherwise. */
type Ask = (part: Partial<Query>) => Promise<Row[]>;

/** Return up to four leads, each about another sample. */
export async function findLeads(source: Source, graded: boolean): Promise<Lead[]> {
  const out: Lead[] = [];
  const isNew = (row: Row): boolean => !out.some((lead) => lead.row.sample_id === row.sample_id);
  const ask: Ask = async (part) => (await source.list({ ...FIRST, descending: true, ...part, whole: true })).rows.filter(isNew);
  for (const kind of graded ? [differentVerdicts, largestGap, longestCascade, largestVar] : [largestGap, longestCascade, largestVar]) {
    const lead = await kind(ask);
    if (lead) out.push(lead);
  }
  return out;
}

/** One order gives a correct answer, another a wrong one. */
async function differentVerdicts(ask: Ask): Promise<Lead | null> {
  const by: Partial<Query> = { sort: "name", descending: false };
  const [right, wrong] = [await ask({ ...by, correct: "yes" }), await ask({ ...by, correct: "no" })];
  for (const good of right) {
    const bad = wrong.find((row) => row.sample_id === good.sample_id && row.run === good.run && row.order !== good.order);
    if (bad) return { title: "One order correct, another wrong", what: `✓ ${good.label}, ✗ ${bad.label}`, row: good, pair: () => [good.id, bad.id] };
  }
  return null;
}

/** The largest difference of mean log q between orders that the gap compares. */
async function largestGap(ask: Ask): Promise<Lead | null> {
  const [row] = await ask({ sort: "gap" });
  if (!row?.gap) return null;
  const pair = (sample: Sample): [string, string] => extremes(comparable(sample, row).filter(isCompared), (trace) => trace.stats.mean);
  return { title: "Largest gap between orders", what: `${fixed(row.gap, 2)} nats per token in mean log q, the same text`, row, pair };
}

/** The end was revealed before the text. */
async function longestCascade(ask: Ask): Promise<Lead | null> {
  const [row] = await ask({ sort: "cascade" });
  if (!row || row.cascade < 2) return null;
  const pair = (sample: Sample): [string, string] => [row.id, extremes(comparable(sample, row), (trace) => trace.cascade)[1]];
  const pass = (sample: Sample): number | null => cascadeStart(sample.traces.find((trace) => trace.id === row.id));
  return { title: "The end is revealed first", what: `${row.cascade} EOS from right to left, ${row.label}`, row, pair, pass };
}

/** Passes done when the first EOS of the longest run of EOS from right to left is revealed. */
export function cascadeStart(trace: Trace | undefined): number | null {
  if (!trace) return null;
  const { is_eos, position, forward } = trace.reveals;
  let [start, best, length] = [0, -1, 0];
  for (let step = 0; step < position.length; step++) {
    if (!is_eos[step]) continue;
    if (!step || !is_eos[step - 1] || position[step]! >= position[step - 1]!) start = step;
    if (step - start + 1 > length) [best, length] = [start, step - start + 1];
  }
  return best < 0 ? null : forward[best]! + 1;
}

/** The largest Var of a trace. */
async function largestVar(ask: Ask): Promise<Lead | null> {
  const [row] = await ask({ sort: "var" });
  if (!row?.var) return null;
  const pair = (sample: Sample): [string, string] => [row.id, extremes(comparable(sample, row), (trace) => trace.stats.var)[1]];
  return { title: "Most uneven path", what: `Var ${fixed(row.var, 2)} nats², ${row.label}`, row, pair };
}

/** Whether a trace counts for the gap: one token per pass, and its sum is a likelihood or an estimate of one. */
function isCompared(trace: Trace): boolean {
  return (trace.likelihood === "exact" || trace.likelihood === "estimate") && trace.n_passes >= trace.reveals.position.length;
}

/** The traces of the same run, task and temperature as a row's. */
function comparable(sample: Sample, row: Row): Trace[] {
  const own = sample.traces.find((trace) => trace.id === row.id)?.key;
  return sample.traces.filter(({ key }) => own && key.run === own.run && key.task === own.task && key.temperature === own.temperature);
}

/** The ids of the traces with the largest and the smallest value. */
function extremes(traces: Trace[], value: (trace: Trace) => number | null): [string, string] {
  const known = traces.filter((trace) => value(trace) !== null).sort((a, b) => value(b)! - value(a)!);
  return [known[0]?.id ?? "", known.at(-1)?.id ?? ""];
}
