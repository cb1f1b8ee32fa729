// The page of one sample: choose one or two traces, replay them, and see their tokens and plots.

import { h, show } from "./dom";
import { copyButton, save, say } from "./buttons";
import { write, type Place } from "./link";
import { fixed } from "./numbers";
import { Panel } from "./panel";
import { lowestOf, type Axis } from "./plots";
import { COLOURS, largestEntropy, tints, type Colour } from "./scales";
import { tokenFacts } from "./token_facts";
import type { Divergence, Sample } from "./types";

const KEYS: [string, string][] = [
  ["← →", "one pass back or forward"],
  ["Home End", "empty canvas, finished text"],
  ["Space", "play; any key pauses"],
  ["B", "next step with q < ½"],
  ["D", "first difference of the two"],
  ["C", "next colour"],
  ["Esc", "all samples"],
];

type Film = (run: string, id: string, traces: string[]) => Promise<Blob>;

export class Explorer {
  private panels: Panel[] = [];
  private axis: Axis = "step";
  private timer: number | null = null;
  private difference: Divergence | null = null;
  private chosen: number | null = null;
  private width = 0;
  // plots are drawn in pixels so that letters keep their size; a new width needs a new drawing
  private readonly resized = new ResizeObserver(() => {
    if (Math.abs(this.root.clientWidth - this.width) > 24) this.compose();
  });
  private readonly body = h("div", { class: "panels" });
  private readonly slider = h("input", {
    type: "range",
    min: 0,
    id: "pass",
    "aria-label": "Forward passes done",
    input: () => this.goTo(Number(this.slider.value)),
  });
  private readonly count = h("output", { class: "count", for: "pass" });
  private readonly playButton = h("button", { type: "button", class: "play", click: () => this.toggle() });
  private readonly detail = h("div", { class: "detail", role: "status", "aria-live": "polite", tabindex: 0 });
  private readonly differing = h("div", { class: "differing" });
  private readonly legend = h("div", { class: "legend" });
  private readonly keys = (event: KeyboardEvent): void => this.key(event);

  constructor(
    private readonly root: HTMLElement,
    private readonly sample: Sample,
    private place: Place,
    private readonly moved: (place: Place) => void,
    private readonly film?: Film,
  ) {
    this.place = { ...place, a: this.named(place.a) ?? sample.traces[0]?.id ?? "", b: this.named(place.b) ?? "" };
    const lost = [place.a, place.b].filter((name) => name && this.named(name) === undefined);
    const said = lost.map((name) => h("p", { class: "trouble", role: "alert" }, `This sample has no order '${name}'; it has ${sample.traces.map((trace) => trace.label).join("; ")}.`));
    show(root, this.given(), ...said, this.controls(), this.player(), this.detail, this.differing, this.body, this.legend, shortcuts());
    document.addEventListener("keydown", this.keys);
    this.compose();
    this.resized.observe(root);
  }

  /** Stop the timer and the key handler; the caller replaces the page. */
  close(): void {
    this.stop();
    this.resized.disconnect();
    document.removeEventListener("keydown", this.keys);
  }

  /** The id of the trace with this id, label or order. */
  private named(name: string): string | undefined {
    const { traces } = this.sample;
    const found = traces.find((trace) => trace.id === name) ?? traces.find((trace) => [trace.label, trace.key.order].includes(name));
    return found?.id;
  }

  /** The orders that are shown, as names that fit other samples too. */
  get orders(): Pick<Place, "a" | "b"> {
    const label = (id: string): string => this.sample.traces.find((trace) => trace.id === id)?.label ?? "";
    return { a: label(this.place.a), b: label(this.place.b) };
  }

  private get passes(): number {
    return Math.max(1, ...this.panels.map((panel) => panel.trace.n_passes));
  }

  private get done(): number {
    return Math.min(this.place.pass ?? this.passes, this.passes);
  }

  private given(): HTMLElement {
    const { prompt, suffix, name } = this.sample;
    return h(
      "header",
      { class: "sample-head" },
      h("h2", { dir: "auto", tabindex: -1 }, name),
      prompt !== null && h("details", { class: "prompt", open: prompt.length < 400 }, h("summary", {}, "Prompt"), h("p", { dir: "auto" }, prompt)),
      suffix !== null && h("details", { class: "prompt" }, h("summary", {}, "Given text after it"), h("p", { dir: "auto" }, suffix)),
    );
  }

  private controls(): HTMLElement {
    const choice = (value: string, chosen: string, text: string) => h("option", { value, selected: value === chosen }, text);
    const choices = (chosen: string) => this.sample.traces.map((trace) => choice(trace.id, chosen, trace.label));
    const a = h("select", { id: "trace-a", change: () => this.choose({ a: a.value }) }, ...choices(this.place.a));
    const b = h(
      "select",
      { id: "trace-b", change: () => this.choose({ b: b.value }) },
      choice("", this.place.b, "nothing"),
      ...choices(this.place.b),
    );
    const colours = COLOURS.map((item) =>
      h(
        "label",
        { title: item.what },
        h("input", { type: "radio", name: "colour", value: item.id, checked: item.id === this.place.colour, change: () => this.colour(item.id) }),
        h("span", {}, item.name),
      ),
    );
    const axes = (["step", "position"] as const).map((axis) =>
      h(
        "label",
        {},
        h("input", { type: "radio", name: "axis", value: axis, checked: axis === this.axis, change: () => this.along(axis) }),
        h("span", {}, axis === "step" ? "Step" : "Position"),
      ),
    );
    return h(
      "div",
      { class: "controls" },
      h("div", { class: "field" }, h("label", { for: "trace-a" }, "Order"), a),
      h("div", { class: "field" }, h("label", { for: "trace-b" }, "Compare with"), b),
      h("fieldset", { class: "segments" }, h("legend", {}, "Colour by"), ...colours),
      h("fieldset", { class: "segments" }, h("legend", {}, "Plot along"), ...axes),
      h("div", { class: "keep" }, this.film && this.filmButton(this.film), copyButton(() => location.href.replace(/#.*/, "") + write(this.place))),
    );
  }

  private player(): HTMLElement {
    const go = (text: string, label: string, to: () => number) =>
      h("button", { type: "button", title: label, "aria-label": label, click: () => this.goTo(to()) }, text);
    return h(
      "div",
      { class: "player", role: "group", "aria-label": "Replay" },
      go("|◀", "Empty canvas", () => 0),
      go("◀", "One pass back", () => this.done - 1),
      this.playButton,
      go("▶", "One pass forward", () => this.done + 1),
      go("▶|", "Finished text", () => this.passes),
      this.slider,
      this.count,
    );
  }

  private filmButton(film: Film): HTMLElement {
    const button = h("button", { type: "button", title: "Save the traces on this page as an animated picture (SVG)" }, "Save film");
    button.addEventListener("click", async () => {
      try {
        const shown = this.panels.map((panel) => panel.trace.id);
        save(await film(this.place.run, this.sample.sample_id, shown), "film.svg");
      } catch (error) {
        say(button, error instanceof Error ? error.message : String(error));
      }
    });
    return button;
  }

  private choose(change: Partial<Place>): void {
    this.place = { ...this.place, ...change };
    this.compose();
    this.moved(this.place);
  }

  /** Build the panels of the chosen traces. */
  private compose(): void {
    this.stop();
    const { a, b } = this.place;
    const chosen = [a, ...(b && b !== a ? [b] : [])].flatMap((id) => this.sample.traces.filter((trace) => trace.id === id));
    this.difference = this.findDifference(a, b);
    const apart = this.difference?.position ?? null;
    this.width = this.root.clientWidth;
    const size = { width: panelWidth(this.width, chosen.length), lowest: lowestOf(chosen) };
    const on = { over: (at: number | null) => this.over(at), choose: (at: number) => this.jump(at) };
    this.panels = chosen.map((trace) => Panel.of(this.sample, trace, apart, size, on));
    for (const element of [this.body, this.detail]) element.classList.toggle("two", this.panels.length > 1);
    show(this.body, ...this.panels.map((panel) => panel.element));
    this.slider.max = String(this.passes);
    this.along(this.axis);
    this.colour(this.place.colour, false);
    this.sayDifference();
    this.draw();
    this.chosen = null;
    this.over(null);
  }

  private findDifference(a: string, b: string): Divergence | null {
    const [i, j] = [a, b].map((id) => this.sample.traces.findIndex((trace) => trace.id === id));
    if (i === undefined || j === undefined || i < 0 || j < 0 || i === j) return null;
    return this.sample.divergences.find((item) => (item.a === i && item.b === j) || (item.a === j && item.b === i)) ?? null;
  }

  private sayDifference(): void {
    const found = this.difference;
    if (this.panels.length < 2 || !found) {
      show(this.differing);
      return;
    }
    const path =
      found.forward === null
        ? "Both traces commit the same tokens in every pass. "
        : h("span", {}, "The paths first differ in ", h("button", { type: "button", class: "link", click: () => this.goTo(found.forward! + 1) }, `pass ${found.forward + 1}`), ". ");
    const first = this.panels[0]?.timeline.positions[0] ?? 0;
    const text =
      found.position === null
        ? "The finished texts are the same."
        : h("span", {}, "The texts differ from ", h("button", { type: "button", class: "link", click: () => this.jump(found.position!) }, `position ${found.position - first + 1}`), " on (◆).");
    show(this.differing, path, text);
  }

  private colour(colour: Colour, tell = true): void {
    this.place = { ...this.place, colour };
    const most = largestEntropy(...this.panels.map((panel) => panel.trace));
    for (const panel of this.panels) panel.tint(tints(panel.trace, colour, most));
    this.root.dataset["colour"] = colour;
    for (const input of this.root.querySelectorAll<HTMLInputElement>('input[name="colour"]')) input.checked = input.value === colour;
    const scale = COLOURS.find((item) => item.id === colour)!;
    const high = colour === "entropy" ? `${fixed(most, 1)} nats` : scale.high;
    show(this.legend, h("span", { class: "scale" }, scale.low, h("i", { "aria-hidden": "true" }), high), h("span", { class: "quiet" }, scale.what), ...states(), signs());
    if (tell) this.moved(this.place);
  }

  private along(axis: Axis): void {
    this.axis = axis;
    for (const panel of this.panels) panel.axis(axis);
  }

  private goTo(pass: number): void {
    const to = Math.min(this.passes, Math.max(0, pass));
    this.place = { ...this.place, pass: to === this.passes ? null : to };
    this.draw();
    this.moved(this.place);
  }

  private draw(): void {
    const pass = this.done - 1;
    for (const panel of this.panels) panel.draw(Math.min(pass, panel.trace.n_passes - 1 + Number(pass >= panel.trace.n_passes)));
    this.slider.value = String(this.done);
    this.slider.setAttribute("aria-valuetext", `pass ${this.done} of ${this.passes}`);
    const new_ = this.panels.map((panel) => panel.timeline.revealedBy(pass));
    const changed = this.panels.map((panel) => panel.timeline.changedBy(pass));
    const says = this.done === 0 ? "nothing revealed yet" : `${new_.join(" and ")} ${new_.join() === "1" ? "token" : "tokens"} revealed${changed.some(Boolean) ? `, ${changed.join(" and ")} changed` : ""}`;
    show(this.count, h("b", {}, `pass ${this.done}`), ` of ${this.passes} · ${says}`);
    show(this.playButton, this.timer === null ? "Play" : "Pause");
    this.playButton.setAttribute("aria-pressed", String(this.timer !== null));
  }

  /** Show the facts of the token under the pointer, or of the one chosen last. */
  private over(pointed: number | null): void {
    const position = pointed ?? this.chosen;
    for (const panel of this.panels) panel.mark(position);
    if (position === null) {
      show(this.detail, h("span", { class: "quiet" }, "Point at a token or a bar, or tab to the tokens and use the arrow keys. A click keeps its facts here."));
      return;
    }
    show(this.detail, ...this.panels.map((panel) => tokenFacts(panel, position, this.panels.length > 1)));
  }

  /** Go to the pass that revealed a position, and mark it. */
  private jump(position: number): void {
    const panel = this.panels.find((item) => item.timeline.stepAt.has(position));
    if (!panel) return;
    this.chosen = position;
    this.goTo(panel.trace.reveals.forward[panel.timeline.stepAt.get(position)!]! + 1);
    this.over(position);
  }

  private toggle(): void {
    if (this.timer === null) {
      this.play();
      return;
    }
    this.stop();
    this.draw();
  }

  /** Replay from here, or from the start where everything is done. */
  play(): void {
    this.stop();
    if (this.done >= this.passes) this.goTo(0);
    const pause = Math.min(450, Math.max(40, 9000 / this.passes));
    this.timer = window.setInterval(() => {
      this.goTo(this.done + 1);
      if (this.done >= this.passes) {
        this.stop();
        this.draw();
      }
    }, pause);
    this.draw();
  }

  private stop(): void {
    if (this.timer !== null) window.clearInterval(this.timer);
    this.timer = null;
  }

  private key(event: KeyboardEvent): void {
    const target = event.target as Element;
    const pressed = event.key.toLowerCase();
    if (this.timer !== null) {
      this.toggle();
      if (pressed === " ") {
        event.preventDefault();
        return;
      }
    }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest("select, textarea, summary, input:not([type=range])")) return;
    if (target.matches("input") && /^(arrow|home|end|page)/.test(pressed)) return; // the slider's own keys
    if (!this.root.isConnected || (!this.root.contains(target) && target !== document.body)) return;
    if (pressed === " " && target.closest("button, a")) return;
    const actions: Record<string, () => void> = {
      arrowleft: () => this.goTo(this.done - 1),
      arrowright: () => this.goTo(this.done + 1),
      home: () => this.goTo(0),
      end: () => this.goTo(this.passes),
      " ": () => this.toggle(),
      b: () => this.nextWorst(),
      d: () => this.difference?.forward != null && this.goTo(this.difference.forward + 1),
      c: () => this.colour(COLOURS[(COLOURS.findIndex((item) => item.id === this.place.colour) + 1) % COLOURS.length]!.id),
    };
    const action = actions[pressed];
    if (!action) return;
    event.preventDefault();
    action();
  }

  private nextWorst(): void {
    const places = (this.panels[0]?.trace.bottlenecks ?? []).slice().sort((x, y) => x.step - y.step);
    const next = places.find((item) => item.forward + 1 > this.done) ?? places[0];
    if (next) this.jump(next.position);
  }
}

/** Pixels inside a panel; two panels share the width on wide screens (the same limit as in page.css). */
function panelWidth(available: number, panels: number): number {
  const share = panels > 1 && window.innerWidth > 960 ? (available - 19) / 2 : available;
  return Math.max(280, Math.round(share - 34));
}

function states(): HTMLElement[] {
  const names: [string, string][] = [
    ["masked", "masked"],
    ["new", "new now"],
    ["earlier", "earlier"],
    ["edited", "replaced"],
    ["remasked", "remasked"],
  ];
  return names.map(([state, name]) =>
    h("span", { class: "key" }, h("span", { class: "token", "data-state": state, "aria-hidden": "true" }, h("span", { class: "piece" }, "ab")), name),
  );
}

function signs(): HTMLElement {
  return h("span", {}, "number: step of the reveal · ▾ q < ½ · ◆ the texts differ from here · faded: past the requested length");
}

function shortcuts(): HTMLElement {
  return h(
    "details",
    { class: "shortcuts" },
    h("summary", {}, "Keys"),
    h("dl", {}, ...KEYS.map(([keys, does]) => h("div", {}, h("dt", {}, ...keys.split(" ").flatMap((key) => [h("kbd", {}, key), " "])), h("dd", {}, does)))),
  );
}
