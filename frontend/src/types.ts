// The JSON that Python sends: the fields of orderlens.show.views.plain and of the viewer's answers.

export interface TraceKey {
  sample_id: string;
  order: string;
  run: string;
  task: string | null;
  seed: number | null;
  temperature: number | null;
  sample_seed: number | null;
}

/** Columns in the order of reveals: the place in a column is the step. */
export interface Reveals {
  forward: number[];
  block: number[];
  position: number[];
  token_id: number[];
  n_tied: number[];
  n_committed: number[];
  logq: (number | null)[];
  tempered_logq?: (number | null)[];
  max_logprob?: (number | null)[];
  second_logprob?: (number | null)[];
  competitor_logprob?: (number | null)[];
  entropy?: (number | null)[];
  is_eos: number[];
  is_special: number[];
  is_overflow: number[];
  is_argmax: number[];
}

/** A token remasked (no new one), replaced, or revealed and remasked later (no old one). */
export interface Revision {
  event: string;
  forward: number;
  position: number;
  old_token: number | null;
  new_token: number | null;
  logq: number | null;
  old_logq: number | null;
}

export interface Bottleneck {
  step: number;
  forward: number;
  position: number;
  logq: number | null;
  share: number | null;
}

export interface Block {
  block: number;
  first: number;
  last: number;
  gini: number | null;
  lorenz: (number | null)[];
}

export interface Verdict {
  correct: boolean | null;
  extracted: string | null;
  reason: string | null;
  grader: string | null;
}

/** The place of a path among all orders of its span. */
export interface Standing {
  share_below: number;
  share_error: number;
  n_orders: number;
  regret: number;
}

export interface Trace {
  id: string;
  key: TraceKey;
  label: string;
  reveals: Reveals;
  revisions: Revision[];
  text: string | null;
  finish_reason: string | null;
  likelihood: string | null;
  standing: Standing | null;
  verdict: Verdict | null;
  stats: Record<"n" | "mean" | "var" | "log_prob" | "min" | "bottleneck_rate" | "gini" | "gini_mean", number | null>;
  n_passes: number;
  cascade: number;
  bottlenecks: Bottleneck[];
  blocks: Block[];
}

/** Where two traces (places in the list) first differ. */
export interface Divergence {
  a: number;
  b: number;
  forward: number | null;
  step: number | null;
  position: number | null;
}

export interface Sample {
  sample_id: string;
  name: string;
  prompt: string | null;
  suffix: string | null;
  pieces: Record<string, Record<string, string>>;
  traces: Trace[];
  divergences: Divergence[];
}

/** One trace in the list of samples. */
export interface Row {
  id: string;
  run: string;
  sample_id: string;
  name: string;
  order: string;
  label: string;
  task: string | null;
  n: number;
  mean: number | null;
  var: number | null;
  passes: number;
  gap: number | null;
  cascade: number;
  correct: boolean | null;
  text: string | null;
}

export type SortColumn = "name" | "label" | "mean" | "var" | "gap" | "passes" | "cascade" | "correct" | "n";

export interface Query {
  run: string;
  order: string;
  text: string;
  correct: "" | "yes" | "no" | "none";
  cascade: number;
  /** Conditions on numbers: "var > 0.5, mean < -1". */
  where: string;
  sort: SortColumn;
  descending: boolean;
  page: number;
  /** Wait until all rows are read; false returns those read so far. */
  whole: boolean;
}

export interface Page {
  total: number;
  rows: Row[];
  /** Rows of a full page. */
  size: number;
  /** How complete the rows are: complete; all traces without texts, verdicts and cascades; the first traces. */
  state: "whole" | "traces" | "peek";
}

/** The traces of a query on the plane of mean and Var; medians by run and task over all orders. */
export interface PlanePoints {
  /** Traces that fit; at most a few thousand of them are in ``points``. */
  total: number;
  points: Row[];
  groups: { run: string; task: string | null; mean: number; var: number }[];
}

/** What a column of the list means. */
export interface Term {
  term: string;
  meaning: string;
  unit: string;
}

/** The runs and orders that a reader can choose, and the meaning of the list's columns. */
export interface Catalogue {
  runs: { name: string; facts: string }[];
  orders: string[];
  graded: boolean;
  notes: string[];
  terms: Record<string, Term>;
}

/** Where samples come from: a file that holds them, or the viewer's server. */
export interface Source {
  catalogue(): Promise<Catalogue>;
  list(query: Query): Promise<Page>;
  sample(run: string, id: string): Promise<Sample>;
  /** All traces of a query; a report has a picture of them instead. */
  plane?(query: Query): Promise<PlanePoints>;
  /** Traces of a sample as an animated picture (SVG); a file cannot draw one. */
  film?(run: string, id: string, traces: string[]): Promise<Blob>;
}

