// Numbers as people read them: a real minus sign, three useful digits, a dash for what is undefined.

import type { Standing } from "./types";

export const LOG_HALF = Math.log(0.5);
export const NONE = "–";

export function fixed(value: number | null | undefined, digits = 2): string {
  if (value === null || value === undefined || !Number.isFinite(value)) return NONE;
  const text = Math.abs(value).toFixed(digits);
  return value < 0 && Number(text) !== 0 ? `−${text}` : text;
}

/** A probability from its logarithm, small ones with two significant digits. */
export function probability(logq: number | null | undefined): string {
  if (logq === null || logq === undefined) return NONE;
  const q = Math.exp(logq);
  if (q > 0.9995 && q < 1) return "> 0.999";
  if (q >= 0.01) return q.toFixed(q >= 0.995 ? 3 : 2);
  return q === 0 ? "0" : q.toExponential(1).replace("e-", " × 10⁻").replace(/⁻(\d+)$/, (_, n: string) => `⁻${raised(n)}`);
}

function raised(digits: string): string {
  return [...digits].map((d) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(d)] ?? d).join("");
}

export function percent(share: number | null | undefined): string {
  return share === null || share === undefined ? NONE : `${Math.round(share * 100)} %`;
}

export function plural(count: number, one: string, many = `${one}s`): string {
  return `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
}

/** Where a path is among all orders of its span: in short, and in a sentence. 100 % only if none is above it. */
export function amongAll({ share_below, share_error, n_orders, regret }: Standing): [string, string] {
  const orders = plural(n_orders, "order");
  if (share_below === 0 && Math.abs(regret) <= 1e-9) return ["all equal", `log P does not depend on the order (${orders})`];
  const share = (digits: number): string => (share_below === 1 ? 100 : Math.min(100 * share_below, 100 - 10 ** -digits)).toFixed(digits);
  const about = share_error > 0 ? "about " : "";
  const distance = regret < 0 ? `${fixed(-regret)} nats above the best order` : `${fixed(regret)} nats below the best`;
  return [`above ${about}${share(1)} %`, `${about}${share(2)} % of ${orders} have a lower log P; ${distance}`];
}
