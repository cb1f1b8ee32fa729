// SVG plots: log q by step or position, and the Lorenz curve of a block.

import { s } from "./dom";
import { fixed, LOG_HALF } from "./numbers";
import type { Timeline } from "./replay";
import type { Block, Trace } from "./types";

export type Axis = "step" | "position";

export interface TracePlot {
  element: SVGElement;
  draw(pass: number): void;
  mark(position: number | null): void;
}

const TOP = 28;
const LEFT = 38;
const RIGHT = 46;
const BOTTOM = 36;

function ticks(lowest: number): number[] {
  const step = [0.5, 1, 2, 5, 10, 20, 50].find((size) => -lowest / size <= 4) ?? 100;
  const out: number[] = [];
  for (let value = 0; value >= lowest - 1e-9; value -= step) out.push(value);
  return out;
}

/** The labelled counts of an axis of steps or positions: all of a short one, else the quarters. */
export function countTicks(span: number): number[] {
  if (span <= 8) return Array.from({ length: span }, (_, place) => place + 1);
  return [1, Math.ceil(span / 4), Math.ceil(span / 2), Math.ceil((3 * span) / 4), span];
}

/** The lower end of the log q axis, shared by the traces on one page. */
export function lowestOf(traces: Trace[]): number {
  let lowest = -1;
  for (const { reveals } of traces) for (const value of reveals.logq) lowest = Math.min(lowest, value ?? 0);
  return lowest * 1.04;
}

/** Bars from log q = 0 downwards; steps with q < ½ have a triangle, which also shows in grey print. */
export function tracePlot(
  timeline: Timeline,
  axis: Axis,
  width: number,
  lowest: number,
  diverges: number | null,
  on: { over(position: number | null): void; choose(position: number): void },
): TracePlot {
  const { reveals, stats } = timeline.trace;
  const n = reveals.position.length;
  const height = width < 500 ? 174 : 204;
  const first = timeline.positions[0] ?? 0;
  const span = axis === "step" ? n : (timeline.positions.at(-1) ?? 0) - first + 1;
  const x = (step: number): number => {
    const place = axis === "step" ? step : reveals.position[step]! - first;
    return LEFT + ((place + 0.5) / Math.max(span, 1)) * (width - LEFT - RIGHT);
  };
  const y = (value: number): number => TOP + (value / lowest) * (height - TOP - BOTTOM);
  const worst = timeline.trace.bottlenecks[0];
  const title =
    `log q by ${axis} of ${timeline.trace.label}: mean ${fixed(stats.mean)}, variance ${fixed(stats.var)}` +
    (worst ? `, least probable ${fixed(worst.logq)} at step ${worst.step + 1}` : "");
  const element = s("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  for (const value of ticks(lowest)) {
    element.append(
      s("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) }),
      s("text", { class: "tick", x: LEFT - 6, y: y(value) + 4, "text-anchor": "end" }, fixed(value, value % 1 ? 1 : 0)),
    );
  }
  if (lowest < LOG_HALF) {
    element.append(
      s("line", { class: "half", x1: LEFT, x2: width - RIGHT, y1: y(LOG_HALF), y2: y(LOG_HALF) }),
      s("text", { class: "tick", x: width - RIGHT + 5, y: y(LOG_HALF) + 3.5 }, "q = ½"),
    );
  }
  for (const count of countTicks(span)) {
    const at = LEFT + ((count - 0.5) / Math.max(span, 1)) * (width - LEFT - RIGHT);
    element.append(s("text", { class: "tick", x: at, y: height - BOTTOM + 15, "text-anchor": "middle" }, count));
  }
  const named = axis === "step" ? "step" : "position from the start of the answer";
  element.append(s("text", { class: "label", x: (LEFT + width - RIGHT) / 2, y: height - 6, "text-anchor": "middle" }, named));
  element.append(s("text", { class: "label", x: LEFT - 32, y: 10 }, "log q (nats)"));

  const marks: SVGElement[] = [];
  const bar = Math.max(1, Math.min(6, ((width - LEFT - RIGHT) / Math.max(span, 1)) * 0.6));
  for (let step = 0; step < n; step++) {
    const value = reveals.logq[step] ?? lowest;
    const low = value < LOG_HALF;
    const mark = s(
      "g",
      { class: `bar${low ? " low" : ""}${reveals.is_eos[step] ? " eos" : ""}` },
      s("line", { x1: x(step), x2: x(step), y1: y(0), y2: Math.max(y(value), y(0) + 1.2), "stroke-width": bar }),
      low && s("path", { d: `M${x(step)} ${y(value) + 5}l-3.2 -5.4h6.4z` }),
    );
    marks.push(mark);
    element.append(mark);
  }
  if (diverges !== null && timeline.stepAt.has(diverges)) {
    const at = x(timeline.stepAt.get(diverges)!);
    element.append(s("path", { class: "diverges", d: `M${at} ${TOP - 1}l4 -5l-4 -5l-4 5z` }));
  }
  const cursor = s("line", { class: "cursor", y1: TOP - 8, y2: height - BOTTOM });
  const halo = s("circle", { class: "halo", r: 5 });
  element.append(cursor, halo);
  const hit = s("rect", { class: "hit", x: LEFT, y: 0, width: width - LEFT - RIGHT, height });
  element.append(hit);

  const nearest = (event: PointerEvent | MouseEvent): number => {
    const box = element.getBoundingClientRect();
    const place = (((event.clientX - box.left) / box.width) * width - LEFT) / (width - LEFT - RIGHT);
    const index = Math.min(span - 1, Math.max(0, Math.floor(place * span)));
    return axis === "step" ? reveals.position[index]! : first + index;
  };
  hit.addEventListener("pointermove", (event) => on.over(nearest(event as PointerEvent)));
  hit.addEventListener("pointerleave", () => on.over(null));
  hit.addEventListener("click", (event) => on.choose(nearest(event as MouseEvent)));

  return {
    element,
    draw(pass) {
      marks.forEach((mark, step) => mark.classList.toggle("future", reveals.forward[step]! > pass));
      const steps = timeline.stepsOf.get(pass);
      cursor.classList.toggle("hidden", !steps);
      if (steps) for (const end of ["x1", "x2"]) cursor.setAttribute(end, String(x(steps[0]!)));
    },
    mark(position) {
      const step = position === null ? undefined : timeline.stepAt.get(position);
      halo.classList.toggle("hidden", step === undefined);
      if (step === undefined) return;
      halo.setAttribute("cx", String(x(step)));
      halo.setAttribute("cy", String(y(reveals.logq[step] ?? lowest)));
    },
  };
}

/** The Lorenz curve of a block: share of −Σ log q that the most certain steps carry. */
export function lorenzPlot(block: Block, label: string): SVGElement {
  const size = 132;
  const [left, bottom] = [26, 24];
  const x = (value: number): number => left + value * (size - left - 6);
  const y = (value: number): number => size - bottom - value * (size - bottom - 8);
  const known = block.lorenz.filter((value): value is number => value !== null);
  const points = known.map((value, place) => `${x(place / Math.max(known.length - 1, 1)).toFixed(1)} ${y(value).toFixed(1)}`);
  const name = `Lorenz curve of block ${block.block + 1}, ${label}: Gini ${fixed(block.gini)}`;
  return s(
    "svg",
    { class: "plot lorenz", viewBox: `0 0 ${size} ${size}`, role: "img", "aria-label": name },
    s("line", { class: "even", x1: x(0), y1: y(0), x2: x(1), y2: y(1) }),
    s("path", { class: "area", d: points.length ? `M${x(0)} ${y(0)}L${points.join("L")}L${x(1)} ${y(0)}Z` : "M0 0" }),
    s("path", { class: "curve", d: points.length ? `M${points.join("L")}` : "M0 0" }),
    s("path", { class: "axis", d: `M${x(0)} ${y(1)}V${y(0)}H${x(1)}` }),
    s("text", { class: "label", x: x(0.5), y: size - 5, "text-anchor": "middle" }, "share of steps"),
    s("text", { class: "label", transform: `translate(11 ${y(0.5)}) rotate(-90)`, "text-anchor": "middle" }, "share of −Σ log q"),
    s("text", { class: "value", x: x(0.06), y: y(0.86) }, `Gini ${fixed(block.gini)}`),
  );
}
