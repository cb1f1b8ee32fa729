// One trace: numbers, tokens, log q, the block's Lorenz curve, the least certain steps.

import { h, show } from "./dom";
import { amongAll, fixed, NONE, percent, plural, probability } from "./numbers";
import { lorenzPlot, tracePlot, type Axis, type TracePlot } from "./plots";
import { Timeline } from "./replay";
import { tokenStrip, visible, type TokenStrip } from "./tokens";
import type { Block, Sample, Trace } from "./types";

export interface PanelEvents {
  over(position: number | null): void;
  choose(position: number): void;
}

/** Pixels across, and the log q at the foot. */
export interface PlotSize {
  width: number;
  lowest: number;
}

export class Panel {
  readonly element: HTMLElement;
  readonly timeline: Timeline;
  private readonly strip: TokenStrip;
  private readonly plotBox = h("div", { class: "plot-box" });
  private readonly lorenzBox = h("div", { class: "lorenz-box" });
  private plot: TracePlot | null = null;
  private block = -1;
  private pass = -1;

  constructor(
    readonly trace: Trace,
    private readonly pieces: Record<string, string>,
    private readonly diverges: number | null,
    private readonly size: PlotSize,
    private readonly on: PanelEvents,
  ) {
    this.timeline = new Timeline(trace);
    this.strip = tokenStrip(this.timeline, pieces, trace.label, diverges, on);
    this.element = h(
      "section",
      { class: "panel", "aria-label": `Order ${trace.label}` },
      h("header", {}, h("h3", { dir: "auto" }, trace.label), verdictChip(trace), facts(trace)),
      this.strip.element,
      this.plotBox,
      h("div", { class: "under" }, this.lorenzBox, this.worst()),
    );
  }

  static of(sample: Sample, trace: Trace, diverges: number | null, size: PlotSize, on: PanelEvents): Panel {
    return new Panel(trace, sample.pieces[trace.key.run] ?? {}, diverges, size, on);
  }

  /** The text of the token that a step revealed. */
  piece(step: number): string {
    const token = this.trace.reveals.token_id[step]!;
    return this.pieces[String(token)] ?? `#${token}`;
  }

  draw(pass: number): void {
    this.pass = pass;
    this.strip.draw(pass);
    this.plot?.draw(pass);
    const steps = this.timeline.stepsOf.get(pass);
    if (steps) this.showBlock(this.trace.reveals.block[steps[0]!]!);
  }

  tint(values: (number | null)[]): void {
    this.strip.tint(values);
  }

  axis(axis: Axis): void {
    this.plot = tracePlot(this.timeline, axis, this.size.width, this.size.lowest, this.diverges, this.on);
    show(this.plotBox, this.plot.element);
    this.plot.draw(this.pass);
    this.plot.mark(null);
  }

  mark(position: number | null): void {
    this.strip.mark(position);
    this.plot?.mark(position);
    const step = position === null ? undefined : this.timeline.stepAt.get(position);
    if (step !== undefined) this.showBlock(this.trace.reveals.block[step]!);
  }

  focus(position: number): void {
    this.strip.focus(position);
  }

  private showBlock(number: number): void {
    if (number === this.block) return;
    const block: Block | undefined = this.trace.blocks.find((item) => item.block === number);
    if (!block) return;
    this.block = number;
    const many = this.trace.blocks.length;
    show(
      this.lorenzBox,
      h("h4", {}, many > 1 ? `Block ${number + 1} of ${many}` : "The block"),
      lorenzPlot(block, this.trace.label),
    );
  }

  private worst(): HTMLElement {
    const rows = this.trace.bottlenecks.map((item) =>
      h(
        "li",
        {},
        h(
          "button",
          { type: "button", class: "worst", click: () => this.on.choose(item.position) },
          h("span", { class: "step" }, `step ${item.step + 1}`),
          h("span", { class: "piece", dir: "auto" }, ...visible(this.piece(item.step))),
          h("span", { class: "q" }, `q = ${probability(item.logq)}`),
          h("span", { class: "share", title: "share of the path's −Σ log q" }, percent(item.share)),
        ),
      ),
    );
    const rate = this.trace.stats.bottleneck_rate;
    const total = rate === null || this.trace.stats.n === null ? null : Math.round(rate * this.trace.stats.n);
    const head = h("h4", {}, "Least certain steps", h("small", {}, ` q < ½${total === null ? "" : `: ${total} of ${this.trace.stats.n}`}${rows.length ? "; % of Σ log q" : ""}`));
    return h("div", { class: "bottlenecks" }, head, rows.length ? h("ol", {}, ...rows) : h("p", { class: "quiet" }, "None: every token had q ≥ ½."));
  }
}

function verdictChip(trace: Trace): HTMLElement | null {
  const { verdict } = trace;
  if (!verdict) return null;
  const [kind, text] = verdict.correct === null ? ["none", "– not graded"] : verdict.correct ? ["yes", "✓ correct"] : ["no", "✗ wrong"];
  const why = [verdict.extracted === null ? "" : `answer “${verdict.extracted}”`, verdict.reason ?? ""].filter(Boolean).join("; ");
  return h("span", { class: `verdict ${kind}`, title: why || undefined }, text!);
}

const LIKELIHOOD: Record<string, string> = {
  exact: "log P of the text",
  estimate: "an estimate of log P",
  none: "not a likelihood",
};

function facts(trace: Trace): HTMLElement {
  const { stats } = trace;
  const kind = LIKELIHOOD[trace.likelihood ?? ""];
  const pairs: [string, string, string][] = [
    ["mean log q", fixed(stats.mean, 3), "nats per token"],
    ["Var log q", fixed(stats.var, 3), "nats²; 0 is a perfectly even path"],
    ["Σ log q", fixed(stats.log_prob, 1), kind ?? "nats"],
    ["passes", String(trace.n_passes), `for ${plural(trace.reveals.position.length, "token")}`],
  ];
  if (trace.standing) {
    pairs.push(["among all orders", ...amongAll(trace.standing)]);
  }
  const changes = trace.revisions.filter((item) => item.event !== "reveal").length;
  if (changes) pairs.push(["changes", String(changes), "tokens remasked or replaced"]);
  if (trace.cascade > 1) pairs.push(["EOS cascade", String(trace.cascade), "consecutive steps that reveal EOS from right to left"]);
  if (trace.finish_reason) pairs.push(["ended by", trace.finish_reason, ""]);
  return h(
    "dl",
    { class: "facts" },
    ...pairs.map(([name, value, note]) => h("div", { title: note || undefined }, h("dt", {}, name), h("dd", {}, value || NONE))),
  );
}
