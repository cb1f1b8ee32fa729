import type { Row, Trace } from "../src/types";

/** Position 1 is revealed by pass 1 and edited by 3; position 3 is filled by 1, remasked by 2, filled by 4. */
export function revised(): Trace {
  const columns = { block: [0, 0, 0, 0], n_tied: [1, 1, 1, 1], n_committed: [1, 2, 2, 1] };
  const flags = { is_eos: [0, 0, 0, 0], is_special: [0, 0, 0, 0], is_overflow: [0, 0, 0, 0], is_argmax: [1, 1, 1, 1] };
  const change = { logq: null, old_logq: null };
  return {
    id: "x run=r",
    key: { sample_id: "a", order: "x", run: "r", task: null, seed: null, temperature: 0, sample_seed: null },
    label: "x",
    reveals: { ...columns, ...flags, forward: [0, 1, 1, 4], position: [0, 1, 2, 3], token_id: [5, 6, 7, 8], logq: [-0.1, -1.6, -0.5, -3], entropy: [0.2, 2, 1, null] },
    revisions: [
      { event: "reveal", forward: 1, position: 3, old_token: null, new_token: 9, ...change },
      { event: "remask", forward: 2, position: 3, old_token: 9, new_token: null, ...change },
      { event: "edit", forward: 3, position: 1, old_token: 6, new_token: 4, ...change },
    ],
    text: null,
    finish_reason: null,
    likelihood: "none",
    verdict: null,
    stats: { n: 4, mean: -1.3, var: 1.2, log_prob: -5.2, min: -3, bottleneck_rate: 0.5, gini: 0.5, gini_mean: 0.5 },
    n_passes: 5,
    cascade: 0,
    bottlenecks: [],
    blocks: [],
  };
}

export function row(name: string, parts: Partial<Row> = {}): Row {
  const base = { id: `${name} x`, run: "r", sample_id: name, name, order: "x", label: "x", task: null, n: 4, mean: -1, var: 1 };
  return { ...base, passes: 4, gap: null, cascade: 0, correct: null, text: null, ...parts };
}
