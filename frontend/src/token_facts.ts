// The stored values of one token, as a line of names and values.

import { h } from "./dom";
import { fixed, NONE, plural, probability } from "./numbers";
import type { Panel } from "./panel";
import { visible } from "./tokens";

/** All stored values of the token at a position. */
export function tokenFacts(panel: Panel, position: number, named: boolean): HTMLElement {
  const step = panel.timeline.stepAt.get(position);
  const { reveals, label } = panel.trace;
  const name = named && h("b", { class: "of" }, label);
  if (step === undefined) return h("div", {}, name, h("span", { class: "quiet" }, "no token at this position"));
  const pairs: [string, string][] = [
    ["revealed", `${step + 1} of ${reveals.position.length}`],
    ["pass", `${reveals.forward[step]! + 1} (${plural(reveals.n_committed[step] || 1, "token")} in it)`],
    ["position", `${position - (panel.timeline.positions[0] ?? 0) + 1} (${position} in the data)`],
    ["id", String(reveals.token_id[step])],
    ["q", probability(reveals.logq[step])],
    ["log q", fixed(reveals.logq[step], 3)],
  ];
  const more: [string, (number | null)[] | undefined][] = [
    ["at the sampling temperature", reveals.tempered_logq],
    [reveals.is_argmax[step] ? "most probable; second token" : "most probable token", reveals.is_argmax[step] ? reveals.second_logprob : reveals.max_logprob],
  ];
  for (const [title, column] of more) if (column && column[step] != null) pairs.push([title, `q = ${probability(column[step])}`]);
  if (reveals.entropy) pairs.push(["entropy", reveals.entropy[step] == null ? NONE : `${fixed(reveals.entropy[step])} nats`]);
  if ((reveals.n_tied[step] ?? 0) > 1) pairs.push(["tied positions", String(reveals.n_tied[step])]);
  const changed = panel.trace.revisions.filter((item) => item.position === position);
  const happened: Record<string, string> = { remask: "remasked", edit: "replaced", reveal: "revealed before" };
  for (const item of changed) pairs.push([happened[item.event] ?? item.event, `by pass ${item.forward + 1}`]);
  return h(
    "div",
    {},
    name,
    h("q", { class: "piece", dir: "auto" }, ...visible(panel.piece(step))),
    h("dl", {}, ...pairs.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))),
  );
}
