// The canvas after a pass. The same rules as orderlens.show.views.replay; both are tested on the same case.

import type { Revision, Trace } from "./types";

export type State = "masked" | "new" | "earlier" | "edited" | "remasked";

export interface Cell {
  state: State;
  token: number | null;
  edited: boolean;
}

/** A trace with lookup tables by position and pass. */
export class Timeline {
  /** Positions from left to right. */
  readonly positions: number[];
  /** Position → step. */
  readonly stepAt = new Map<number, number>();
  /** Reveals by pass. */
  readonly stepsOf = new Map<number, number[]>();
  private readonly changes = new Map<number, Revision[]>();

  constructor(readonly trace: Trace) {
    const { position, forward } = trace.reveals;
    position.forEach((place, step) => {
      this.stepAt.set(place, step);
      const pass = forward[step]!;
      const found = this.stepsOf.get(pass);
      if (found) found.push(step);
      else this.stepsOf.set(pass, [step]);
    });
    this.positions = [...position].sort((a, b) => a - b);
    for (const item of trace.revisions) {
      const found = this.changes.get(item.position);
      if (found) found.push(item);
      else this.changes.set(item.position, [item]);
    }
  }

  /** The cell at a position after a pass (−1: before the first). */
  cell(position: number, pass: number): Cell {
    const step = this.stepAt.get(position)!;
    const since = this.trace.reveals.forward[step]!;
    const changes = (this.changes.get(position) ?? []).filter((item) => item.forward <= pass);
    if (since > pass) return before(changes.at(-1), pass);
    const last = changes.filter((item) => item.forward >= since && item.new_token !== null).at(-1);
    if (last) return { state: last.forward === pass ? "edited" : "earlier", token: last.new_token, edited: true };
    return { state: since === pass ? "new" : "earlier", token: this.trace.reveals.token_id[step]!, edited: false };
  }

  /** Number of earlier tokens that a pass changed. */
  changedBy(pass: number): number {
    return this.trace.revisions.filter((item) => item.forward === pass && item.event !== "reveal").length;
  }

  /** Number of tokens that a pass revealed, including those changed later. */
  revealedBy(pass: number): number {
    const lost = this.trace.revisions.filter((item) => item.forward === pass && item.event === "reveal").length;
    return lost + (this.stepsOf.get(pass)?.length ?? 0);
  }
}

/** The cell at a position before its last reveal, from its latest change. */
function before(last: Revision | undefined, pass: number): Cell {
  const masked: Cell = { state: "masked", token: null, edited: false };
  if (!last) return masked;
  const now = last.forward === pass;
  if (last.new_token === null) return now ? { state: "remasked", token: last.old_token, edited: false } : masked;
  const edited = last.event === "edit";
  return { state: now ? (edited ? "edited" : "new") : "earlier", token: last.new_token, edited };
}
