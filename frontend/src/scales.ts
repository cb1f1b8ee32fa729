// How strongly a token is coloured: 0 pale … 1 strong. Each quantity has its own hue.

import type { Trace } from "./types";

export type Colour = "confidence" | "order" | "entropy";

export const COLOURS: { id: Colour; name: string; low: string; high: string; what: string }[] = [
  { id: "confidence", name: "Confidence", low: "q = 1", high: "q = 0", what: "stronger: less probable when it was revealed" },
  { id: "order", name: "Order", low: "first", high: "last", what: "stronger: revealed later" },
  { id: "entropy", name: "Entropy", low: "0 nats", high: "largest", what: "stronger: higher entropy" },
];

/** Return the strength of the colour per step; null where the quantity is unknown. */
export function tints(trace: Trace, colour: Colour, most = largestEntropy(trace)): (number | null)[] {
  const { logq, entropy } = trace.reveals;
  const n = logq.length;
  if (colour === "order") return logq.map((_, step) => (n > 1 ? step / (n - 1) : 0));
  if (colour === "entropy") return logq.map((_, step) => ratio(entropy?.[step], most));
  return logq.map((value) => (value === null ? 1 : 1 - Math.exp(value)));
}

export function largestEntropy(...traces: Trace[]): number {
  let most = 0;
  for (const trace of traces) for (const value of trace.reveals.entropy ?? []) most = Math.max(most, value ?? 0);
  return most;
}

function ratio(value: number | null | undefined, most: number): number | null {
  if (value === null || value === undefined) return null;
  return most > 0 ? Math.min(1, value / most) : 0;
}
