// The tokens in reading order, each with its reveal number and its state after a pass.

import { h, type Child } from "./dom";
import { LOG_HALF, probability } from "./numbers";
import type { Timeline } from "./replay";

export interface TokenStrip {
  element: HTMLElement;
  /** Draw the canvas after a pass (−1: nothing yet). */
  draw(pass: number): void;
  tint(values: (number | null)[]): void;
  /** Mark one position, e.g. the one under the pointer. */
  mark(position: number | null): void;
  focus(position: number): void;
}

interface Handlers {
  over(position: number | null): void;
  choose(position: number): void;
}

/** Write what takes no width as its code point, and a token without text as ∅. */
export function withCodes(piece: string): string {
  return piece.replace(/[\u00ad\u200b-\u200f\u2060-\u2064\ufe0f\ufeff]/g, (letter) => `⟨U+${letter.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`) || "∅";
}

/** Make blanks visible: a dot per space, arrows for line breaks and tabs. */
export function visible(piece: string): Child[] {
  return withCodes(piece)
    .split(/([ \n\t\u00a0]+)/)
    .filter(Boolean)
    .map((part) =>
      /^[ \n\t\u00a0]/.test(part)
        ? h("span", { class: "blank" }, part.replace(/[ \u00a0]/g, "·").replace(/\n/g, "↵").replace(/\t/g, "→"))
        : part,
    );
}

export function tokenStrip(
  timeline: Timeline,
  pieces: Record<string, string>,
  name: string,
  diverges: number | null,
  on: Handlers,
): TokenStrip {
  const { reveals } = timeline.trace;
  const items = new Map<number, HTMLElement>();
  const text = (token: number): string => pieces[String(token)] ?? `#${token}`;
  const element = h("div", { class: "tokens", role: "listbox", "aria-label": `Tokens, ${name}`, tabindex: -1 });
  let marked: number | null = null;
  let block = reveals.block[timeline.stepAt.get(timeline.positions[0] ?? 0) ?? 0];

  for (const position of timeline.positions) {
    const step = timeline.stepAt.get(position)!;
    if (reveals.block[step] !== block) {
      block = reveals.block[step];
      element.append(h("span", { class: "edge", role: "presentation", title: `block ${(block ?? 0) + 1}` }));
    }
    const kind = reveals.is_eos[step] ? "eos" : reveals.is_special[step] ? "special" : "content";
    const item = h(
      "span",
      {
        class: `token ${kind}${reveals.is_overflow[step] ? " overflow" : ""}`,
        role: "option",
        "aria-selected": "false",
        tabindex: -1,
        "data-position": position,
        "data-low": (reveals.logq[step] ?? -Infinity) < LOG_HALF ? "" : undefined,
        "data-diverges": position === diverges ? "" : undefined,
      } as never,
      h("span", { class: "number", "aria-hidden": "true" }, step + 1),
      h("span", { class: "piece", dir: "auto" }),
      h("span", { class: "unseen" }),
    );
    items.set(position, item);
    element.append(item);
    if (/\n/.test(text(reveals.token_id[step]!))) element.append(h("span", { class: "break", role: "presentation" }));
  }
  items.get(timeline.positions[0] ?? -1)?.setAttribute("tabindex", "0");

  const at = (event: Event): number | null => {
    const item = (event.target as Element).closest<HTMLElement>("[data-position]");
    return item ? Number(item.dataset["position"]) : null;
  };
  element.addEventListener("pointerover", (event) => on.over(at(event)));
  element.addEventListener("pointerleave", () => on.over(null));
  element.addEventListener("focusin", (event) => on.over(at(event)));
  element.addEventListener("click", (event) => {
    const position = at(event);
    if (position !== null) on.choose(position);
  });
  element.addEventListener("keydown", (event) => {
    const position = at(event);
    if (position === null) return;
    const place = timeline.positions.indexOf(position);
    const moves: Record<string, number> = { ArrowLeft: place - 1, ArrowRight: place + 1, Home: 0, End: timeline.positions.length - 1 };
    const next = moves[event.key];
    if (next !== undefined) {
      const target = timeline.positions[next];
      if (target !== undefined) strip.focus(target);
    } else if (event.key === "Enter") on.choose(position);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });

  const strip: TokenStrip = {
    element,
    draw(pass) {
      for (const [position, item] of items) {
        const step = timeline.stepAt.get(position)!;
        const cell = timeline.cell(position, pass);
        const shown = text(cell.token ?? reveals.token_id[step]!);
        const written = `${cell.state}/${cell.token}`;
        if (item.dataset["written"] === written) continue;
        item.dataset["written"] = written;
        item.dataset["state"] = cell.state;
        item.toggleAttribute("data-edited", cell.edited);
        item.querySelector(".piece")!.replaceChildren(
          ...(item.classList.contains("eos") && !cell.edited ? ["EOS"] : (visible(shown) as (Node | string)[])),
        );
        item.querySelector(".piece")!.setAttribute("aria-hidden", String(cell.state === "masked"));
        item.querySelector(".unseen")!.textContent = describe(cell.state, step, reveals.logq[step] ?? null);
      }
    },
    tint(values) {
      for (const [position, item] of items) {
        const value = values[timeline.stepAt.get(position)!] ?? null;
        item.toggleAttribute("data-unknown", value === null);
        item.style.setProperty("--v", String(value ?? 0));
      }
    },
    mark(position) {
      if (marked !== null) {
        items.get(marked)?.classList.remove("marked");
        items.get(marked)?.setAttribute("aria-selected", "false");
      }
      marked = position;
      if (position === null) return;
      items.get(position)?.classList.add("marked");
      items.get(position)?.setAttribute("aria-selected", "true");
    },
    focus(position) {
      for (const item of element.querySelectorAll('[tabindex="0"]')) item.setAttribute("tabindex", "-1");
      const item = items.get(position);
      item?.setAttribute("tabindex", "0");
      item?.focus();
    },
  };
  return strip;
}

const WORDS: Record<string, string> = {
  masked: "still masked",
  "remasked": "remasked by this pass",
  edited: "replaced by this pass",
  new: "revealed by this pass",
  earlier: "revealed",
};

/** The text that a screen reader adds after the token. */
function describe(state: string, step: number, logq: number | null): string {
  if (state === "masked") return "still masked";
  return `, ${WORDS[state] ?? state}, number ${step + 1}, probability ${probability(logq)}`;
}
