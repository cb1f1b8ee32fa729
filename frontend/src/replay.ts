// The canvas after a pass. The same rules as orderlens.views.replay; both are tested on the same case.

import type { Revision, Trace } from "./types";

export type State = "masked" | "new" | "earlier" | "edited" | "taken-back";

export interface Cell {
  state: State;
  token: number | null;
  edited: boolean;
}

/** A trace with what is looked up often. */
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

  /** What stands at a position after a pass (−1: nothing yet). */
  cell(position: number, pass: number): Cell {
    const step = this.stepAt.get(position)!;
    const since = this.trace.reveals.forward[step]!;
    const changes = (this.changes.get(position) ?? []).filter((item) => item.forward <= pass);
    if (since > pass) {
      const lost = changes.find((item) => item.forward === pass && item.new_token === null);
      return { state: lost ? "taken-back" : "masked", token: lost ? lost.old_token : null, edited: false };
    }
    const last = changes.filter((item) => item.forward >= since && item.new_token !== null).at(-1);
    if (last) return { state: last.forward === pass ? "edited" : "earlier", token: last.new_token, edited: true };
    return { state: since === pass ? "new" : "earlier", token: this.trace.reveals.token_id[step]!, edited: false };
  }

  /** How many changes a pass made to tokens that stood before it. */
  changedBy(pass: number): number {
    return this.trace.revisions.filter((item) => item.forward === pass).length;
  }
}
