// Traces on the plane of mean log q and Var, one panel per run and task; a click opens the nearest trace.

import { h, s } from "./dom";
import { fixed, plural } from "./numbers";
import type { PlanePoints, Row } from "./types";

const [WIDTH, HEIGHT] = [380, 290];
const [LEFT, RIGHT, TOP, BOTTOM] = [52, 34, 30, 38];
const BINS = 16;
/** Pixels of the drawing within which a click means a point. */
const NEAR = 16;
/** Panels at most. */
const MOST_PANELS = 8;

type Point = Row & { mean: number; var: number };

/** Positions 0 to 1 of values; logarithmic if they span more than a factor of five, with 0 at the lower end. */
export function scale(values: number[], logarithmic: boolean): (value: number) => number {
  const positive = values.filter((value) => value > 0);
  const least = Math.min(...positive);
  const isLog = logarithmic && positive.length > 0 && Math.max(...values) > 5 * least;
  const shown = (value: number): number => (isLog ? Math.log(Math.max(value, least / 2)) : value);
  const [low, high] = [Math.min(...values.map(shown)), Math.max(...values.map(shown))];
  const space = 0.05 * Math.max(high - low, 1e-9);
  return (value) => (shown(value) - low + space) / (high - low + 2 * space);
}

/** Shares of positions 0 to 1 in bins of equal width; they add up to 1. */
export function shares(places: number[]): number[] {
  const out = new Array<number>(BINS).fill(0);
  for (const place of places) out[Math.min(BINS - 1, Math.max(0, Math.floor(place * BINS)))]! += 1 / places.length;
  return out;
}

/** A value of Var for an axis: two digits, with an exponent below 0.001. */
export function varTick(value: number): string {
  const short = Number(value.toPrecision(2));
  return short > 0 && short < 0.001 ? short.toExponential() : String(short);
}

/** The lowest and highest value, and the middle one if its label has room on the drawing. */
export function ticks(values: number[], middle: number, place: (value: number) => number, room: number): number[] {
  const ends = [Math.min(...values), Math.max(...values)];
  const apart = ends.every((end) => Math.abs(place(end) - place(middle)) >= room);
  return [...new Set(apart ? [...ends, middle] : ends)];
}

const verdict = (row: Row): "yes" | "no" | "none" => (row.correct === null ? "none" : row.correct ? "yes" : "no");

export function planes(found: PlanePoints, open: (row: Row) => void): HTMLElement[] {
  const points = found.points.filter((row): row is Point => row.mean !== null && row.var !== null);
  const groups = found.groups.map((group) => ({ ...group, points: points.filter((row) => row.run === group.run && row.task === group.task) })).filter((group) => group.points.length);
  groups.sort((a, b) => `${a.task} ${a.run}`.localeCompare(`${b.task} ${b.run}`));
  const graded = points.some((row) => row.correct !== null);
  const few = found.total > points.length ? ` ${points.length.toLocaleString("en")} of ${plural(found.total, "trace")}, chosen by hash.` : "";
  const more = groups.length > MOST_PANELS ? ` The first ${MOST_PANELS} of ${groups.length} runs and tasks; choose a run above for others.` : "";
  const others = points.some((row) => row.correct === null) ? ", grey dots texts without a verdict" : "";
  const colours = graded ? `Dots are correct answers, crosses incorrect ones${others}. ` : "";
  const text = `${colours}Dashed: medians over all orders. Strips: how each kind is spread. Mean and Var leave out end-of-text tokens; those of the list do not. Click a mark to open its sample.${few}${more}`;
  const several = (task: string | null): boolean => groups.filter((group) => group.task === task).length > 1;
  return [h("p", { class: "small" }, text), ...groups.slice(0, MOST_PANELS).map((group) => panel(group.points, group, several(group.task), open))];
}

function panel(points: Point[], group: PlanePoints["groups"][number], several: boolean, open: (row: Row) => void): HTMLElement {
  const means = [...points.map((row) => row.mean), group.mean];
  const variances = [...points.map((row) => row.var), group.var];
  const [toX, toY] = [scale(means, false), scale(variances, true)];
  const x = (value: number): number => LEFT + toX(value) * (WIDTH - LEFT - RIGHT);
  const y = (value: number): number => HEIGHT - BOTTOM - toY(value) * (HEIGHT - TOP - BOTTOM);
  const name = [group.task, (several || !group.task) && group.run].filter(Boolean).join(", ");
  const said = h("p", { class: "small", role: "status" }, plural(points.length, "trace"));
  const svg = s("svg", { class: "plot", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${name}: ${plural(points.length, "trace")} by mean log q and Var; the list holds the same traces` });
  svg.append(s("path", { class: "axis", d: `M${LEFT} ${TOP}V${HEIGHT - BOTTOM}H${WIDTH - RIGHT}` }));
  svg.append(s("line", { class: "border", x1: x(group.mean), x2: x(group.mean), y1: TOP, y2: HEIGHT - BOTTOM }), s("line", { class: "border", x1: LEFT, x2: WIDTH - RIGHT, y1: y(group.var), y2: y(group.var) }));
  for (const kind of ["yes", "no", "none"] as const) {
    const mine = points.filter((row) => verdict(row) === kind);
    if (mine.length) svg.append(...strips(mine, kind, toX, toY));
    for (const row of mine) svg.append(mark(kind, x(row.mean), y(row.var)));
  }
  for (const value of ticks(means, group.mean, x, 32)) svg.append(s("text", { class: "tick", x: x(value), y: HEIGHT - BOTTOM + 14, "text-anchor": "middle" }, fixed(value, 2)));
  for (const value of ticks(variances, group.var, y, 11)) svg.append(s("text", { class: "tick", x: LEFT - 5, y: y(value) + 4, "text-anchor": "end" }, varTick(value)));
  svg.append(s("text", { class: "label", x: (LEFT + WIDTH - RIGHT) / 2, y: HEIGHT - 6, "text-anchor": "middle" }, "mean log q (nats per token)"), s("text", { class: "label", x: 2, y: 9 }, "Var (nats²)"));
  const ring = s("circle", { class: "chosen", r: 6, visibility: "hidden" });
  svg.append(ring);
  const nearest = (event: PointerEvent | MouseEvent): Point | null => {
    const box = svg.getBoundingClientRect();
    const [at, height] = [((event.clientX - box.left) / box.width) * WIDTH, ((event.clientY - box.top) / box.height) * HEIGHT];
    let [best, far]: [Point | null, number] = [null, NEAR];
    for (const row of points) {
      const distance = Math.hypot(x(row.mean) - at, y(row.var) - height);
      if (distance < far) [best, far] = [row, distance];
    }
    return best;
  };
  svg.addEventListener("pointermove", (event) => {
    const row = nearest(event as PointerEvent);
    ring.setAttribute("visibility", row ? "visible" : "hidden");
    if (!row) return;
    ring.setAttribute("cx", String(x(row.mean)));
    ring.setAttribute("cy", String(y(row.var)));
    const sign = { yes: ", correct", no: ", incorrect", none: "" }[verdict(row)];
    said.textContent = `${row.name}, ${row.label}: mean ${fixed(row.mean, 3)}, Var ${Number(row.var.toPrecision(3))}${sign}`;
  });
  svg.addEventListener("click", (event) => {
    const row = nearest(event as MouseEvent);
    if (row) open(row);
  });
  return h("div", { class: "plane" }, h("h4", { dir: "auto" }, name), svg as never, said);
}

function mark(kind: "yes" | "no" | "none", x: number, y: number): SVGElement {
  if (kind === "no") return s("path", { class: kind, d: `M${x - 2.8} ${y - 2.8}l5.6 5.6m0 -5.6l-5.6 5.6` });
  return s("circle", { class: kind, cx: x, cy: y, r: 2.4, "fill-opacity": 0.7, "stroke-width": 0 });
}

/** How the traces of one kind are spread: the mean above the panel, Var at its right; the largest bin fills the strip. */
function strips(rows: Point[], kind: string, toX: (value: number) => number, toY: (value: number) => number): SVGElement[] {
  const [width, height] = [(WIDTH - LEFT - RIGHT) / BINS, (HEIGHT - TOP - BOTTOM) / BINS];
  const lengths = (places: number[], longest: number): number[] => {
    const found = shares(places);
    return found.map((share) => (share / Math.max(...found)) * longest);
  };
  const above = lengths(rows.map((row) => toX(row.mean)), TOP - 14).map((length, bin) => s("rect", { class: `strip ${kind}`, x: LEFT + bin * width, width, y: TOP - 2 - length, height: length }));
  const beside = lengths(rows.map((row) => toY(row.var)), RIGHT - 4).map((length, bin) => s("rect", { class: `strip ${kind}`, x: WIDTH - RIGHT + 2, width: length, y: HEIGHT - BOTTOM - (bin + 1) * height, height }));
  return [...above, ...beside];
}
