// Shows the list or one sample, as the address says, and keeps the address up to date.

import { h, show } from "./dom";
import { Explorer } from "./explorer";
import type { Lead } from "./leads";
import { isOurs, NOWHERE, read, readList, write, writeList, type Place } from "./link";
import { SampleList } from "./samples";
import type { Catalogue, Query, Row, Source } from "./types";

/** Browsers limit how often the address may change: a burst of changes, then one per PAUSE milliseconds. */
const BURST = 20;
const PAUSE = 250;

export class App {
  private place: Place = NOWHERE;
  private explorer: Explorer | null = null;
  private list: SampleList | null = null;
  private opened = 0;
  private credit = BURST;
  private noted = 0;
  private waiting = 0;
  private readonly title = document.title;
  private readonly page = h("div", { class: "sample-page", hidden: true });
  private readonly listBox = h("div", { class: "list" });
  private readonly sampleBox = h("div", { class: "sample" });
  private readonly back = h("button", { type: "button", class: "back", click: () => this.leave() }, "← All samples");
  private near: Row[] = [];
  private readonly turns = new Map(([[-1, "← Previous"], [1, "Next →"]] as const).map(([by, text]) => [by, h("button", { type: "button", class: "back", click: () => this.openRow(this.neighbour(by)!, true) }, text)]));
  /** The rows of the list next to the open sample; only wide screens show it. */
  private readonly sideList = h("nav", { class: "side-list", "aria-label": "List" });
  private readonly trouble = h("p", { class: "trouble", role: "alert" });

  constructor(
    root: HTMLElement,
    private readonly source: Source,
    private readonly catalogue: Catalogue,
  ) {
    show(this.page, h("nav", { class: "turns", "aria-label": "Samples" }, this.back, ...this.turns.values()), this.sideList, this.sampleBox);
    show(root, this.trouble, this.listBox, this.page);
    window.addEventListener("hashchange", () => isOurs(location.hash) && void this.follow());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.explorer && !(event.target as Element).closest("select, input[type=search]")) this.leave();
    });
    void this.follow();
  }

  /** Show the sample or the list that the address names; ``turned``: the reader came from the list. */
  private async follow(turned = false): Promise<void> {
    const wanted = read(location.hash);
    show(this.trouble);
    if (wanted.sample === null) {
      this.showList();
      return;
    }
    const mine = ++this.opened;
    if (!this.explorer) {
      this.view("sample");
      show(this.sampleBox, h("p", { class: "quiet", role: "status" }, "Reading the sample…"));
    }
    try {
      const sample = await this.source.sample(wanted.run, wanted.sample);
      if (mine !== this.opened) return;
      this.explorer?.close();
      this.place = wanted;
      this.view("sample");
      document.title = `${sample.name} · ${this.title}`;
      const moved = (place: Place) => this.note({ ...place, sample: wanted.sample, run: wanted.run });
      this.explorer = new Explorer(this.sampleBox, sample, wanted, moved, this.source.film?.bind(this.source));
      if (turned) this.sampleBox.querySelector<HTMLElement>("h2")?.focus({ preventScroll: true });
      this.back.scrollIntoView({ block: "start" });
      this.near = this.near.some((row) => row.sample_id === wanted.sample) ? this.near : (await this.source.list({ ...readList(""), run: wanted.run })).rows;
      for (const [by, button] of this.turns) button.disabled = !this.neighbour(by);
      show(this.sideList, h("ol", {}, ...this.near.map((row) => this.entry(row))));
    } catch (error) {
      if (mine !== this.opened) return;
      show(this.trouble, error instanceof Error ? error.message : String(error));
      this.showList();
    }
  }

  /** The first row of another sample before (−1) or after (1) the open one, as the list was sorted. */
  private neighbour(by: 1 | -1): Row | undefined {
    const same = (row: Row) => row.sample_id === this.place.sample && (!this.place.run || row.run === this.place.run);
    const rows = by > 0 ? this.near : [...this.near].reverse();
    const seen = rows.findIndex(same);
    return seen < 0 ? undefined : rows.slice(seen).find((row) => !same(row));
  }

  /** One row of the list next to the sample: name and order; rows of the open sample are marked. */
  private entry(row: Row): HTMLElement {
    const isOpen = row.sample_id === this.place.sample;
    return h("li", {}, h("button", { type: "button", "aria-current": isOpen ? "true" : undefined, click: () => this.openRow(row) }, h("span", { dir: "auto" }, row.name), h("small", { dir: "auto" }, row.label)));
  }

  private view(which: "list" | "sample"): void {
    this.listBox.hidden = which !== "list";
    this.page.hidden = which !== "sample";
  }

  private showList(): void {
    this.opened++;
    window.clearTimeout(this.waiting);
    this.explorer?.close();
    this.explorer = null;
    document.title = this.title;
    this.view("list");
    const query = readList(location.hash);
    if (this.list) this.list.open(query);
    else {
      const on = { open: (row: Row) => this.openRow(row), lead: (lead: Lead) => void this.openLead(lead), changed: (query: Query) => this.write(writeList(query)) };
      this.list = new SampleList(this.listBox, this.source, this.catalogue, query, on);
    }
  }

  /** Back to the list as it was left. */
  private leave(): void {
    const from = this.place;
    this.turn(this.list ? writeList(this.list.query) : "");
    void this.follow();
    this.list?.focus(from);
  }

  /** Open a row's sample; ``keep``: with the orders that are open now. */
  private openRow(row: Row, keep = false): void {
    this.near = this.list?.rows.includes(row) ? this.list.rows : this.near;
    const orders = keep ? this.explorer!.orders : { a: row.id };
    this.turn(write({ ...NOWHERE, colour: this.place.colour, sample: row.sample_id, run: row.run, ...orders }));
    void this.follow(true);
  }

  /** Open the two traces of a lead. */
  private async openLead(lead: Lead): Promise<void> {
    const { row } = lead;
    try {
      const sample = await this.source.sample(row.run, row.sample_id);
      const [a, b] = lead.pair(sample);
      this.turn(write({ ...NOWHERE, sample: row.sample_id, run: row.run, a, b, pass: lead.pass?.(sample) ?? null }));
      await this.follow(true);
    } catch (error) {
      show(this.trouble, error instanceof Error ? error.message : String(error));
    }
  }

  /** Make an address a step of the browser's history. */
  private turn(address: string): void {
    window.clearTimeout(this.waiting);
    history.pushState(null, "", address || location.pathname + location.search);
  }

  /** Keep the address in step with a sample's page. */
  private note(place: Place): void {
    this.place = place;
    window.clearTimeout(this.waiting);
    const now = Date.now();
    this.credit = Math.min(BURST, this.credit + (now - this.noted) / PAUSE);
    this.noted = now;
    if (this.credit >= 1) {
      this.credit--;
      this.write(write(place));
    } else this.waiting = window.setTimeout(() => this.note(place), PAUSE);
  }

  private write(address: string): void {
    history.replaceState(null, "", address || location.pathname + location.search);
  }
}
