// List and sample page together, kept in step with the address.

import { h, show } from "./dom";
import { Explorer } from "./explorer";
import type { Lead } from "./leads";
import { isOurs, NOWHERE, read, readList, write, writeList, type Place } from "./link";
import { SampleList } from "./samples";
import type { Catalogue, Query, Row, Source } from "./types";

/** Browsers refuse to change the address too often: so many times at once, then once per so many milliseconds. */
const AT_ONCE = 20;
const PAUSE = 250;

export class App {
  private place: Place = NOWHERE;
  private explorer: Explorer | null = null;
  private list: SampleList | null = null;
  private opened = 0;
  private credit = AT_ONCE;
  private noted = 0;
  private waiting = 0;
  private readonly title = document.title;
  private readonly listBox = h("div", { class: "list" });
  private readonly sampleBox = h("div", { class: "sample" });
  private readonly back = h("button", { type: "button", class: "back", click: () => this.leave() }, "← All samples");
  private readonly trouble = h("p", { class: "trouble", role: "alert" });

  constructor(
    root: HTMLElement,
    private readonly source: Source,
    private readonly catalogue: Catalogue,
  ) {
    show(root, this.trouble, this.listBox, h("div", { class: "sample-page", hidden: true }, this.back, this.sampleBox));
    window.addEventListener("hashchange", () => isOurs(location.hash) && void this.follow());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.explorer && !(event.target as Element).closest("select, input[type=search]")) this.leave();
    });
    void this.follow();
  }

  /** Show what the address names; ``turned`` where a reader came here from the list. */
  private async follow(turned = false): Promise<boolean> {
    const wanted = read(location.hash);
    show(this.trouble);
    if (wanted.sample === null) {
      this.showList();
      return false;
    }
    const mine = ++this.opened;
    if (!this.explorer) {
      this.view("sample");
      show(this.sampleBox, h("p", { class: "quiet", role: "status" }, "Reading the sample…"));
    }
    try {
      const sample = await this.source.sample(wanted.run, wanted.sample);
      if (mine !== this.opened) return false;
      this.explorer?.close();
      this.place = wanted;
      this.view("sample");
      document.title = `${sample.name} · ${this.title}`;
      const moved = (place: Place) => this.note({ ...place, sample: wanted.sample, run: wanted.run });
      this.explorer = new Explorer(this.sampleBox, sample, wanted, moved, this.source.film?.bind(this.source));
      if (turned) this.sampleBox.querySelector<HTMLElement>("h2")?.focus({ preventScroll: true });
      this.back.scrollIntoView({ block: "start" });
      return true;
    } catch (error) {
      if (mine !== this.opened) return false;
      show(this.trouble, error instanceof Error ? error.message : String(error));
      this.showList();
      return false;
    }
  }

  private view(which: "list" | "sample"): void {
    this.listBox.hidden = which !== "list";
    this.back.parentElement!.hidden = which !== "sample";
  }

  private showList(): void {
    this.opened++;
    window.clearTimeout(this.waiting);
    this.explorer?.close();
    this.explorer = null;
    document.title = this.title;
    this.view("list");
    const query = readList(location.hash);
    if (this.list) this.list.ask(query);
    else {
      const on = { open: (row: Row) => this.openRow(row), lead: (lead: Lead) => void this.openLead(lead), asked: (asked: Query) => this.write(writeList(asked)) };
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

  private openRow(row: Row): void {
    this.turn(write({ ...NOWHERE, colour: this.place.colour, sample: row.sample_id, run: row.run, a: row.id }));
    void this.follow(true);
  }

  /** Open the two traces that show it, and replay them where motion is welcome. */
  private async openLead(lead: Lead): Promise<void> {
    const { row } = lead;
    try {
      const [a, b] = lead.pair(await this.source.sample(row.run, row.sample_id));
      const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
      this.turn(write({ ...NOWHERE, sample: row.sample_id, run: row.run, a, b, pass: still ? null : 0 }));
      if ((await this.follow(true)) && !still) this.explorer?.play();
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
    this.credit = Math.min(AT_ONCE, this.credit + (now - this.noted) / PAUSE);
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
