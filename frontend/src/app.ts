// List and sample page together, kept in step with the address.

import { h, show } from "./dom";
import { Explorer } from "./explorer";
import { NOWHERE, read, write, type Place } from "./link";
import { SampleList } from "./samples";
import type { Catalogue, Row, Source } from "./types";

export class App {
  private place: Place = NOWHERE;
  private explorer: Explorer | null = null;
  private list: SampleList | null = null;
  private opened = 0;
  private readonly listBox = h("div", { class: "list" });
  private readonly sampleBox = h("div", { class: "sample" });
  private readonly back = h("button", { type: "button", class: "back", click: () => this.go(NOWHERE, true) }, "← All samples");
  private readonly trouble = h("p", { class: "trouble", role: "alert" });

  constructor(
    root: HTMLElement,
    private readonly source: Source,
    private readonly catalogue: Catalogue,
  ) {
    show(root, this.trouble, this.listBox, h("div", { class: "sample-page" }, this.back, this.sampleBox));
    window.addEventListener("hashchange", () => void this.follow());
    void this.follow();
  }

  /** Show what the address names. */
  private async follow(): Promise<void> {
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
      this.explorer = new Explorer(this.sampleBox, sample, wanted, (place) => this.go({ ...place, sample: wanted.sample, run: wanted.run }, false));
      this.back.scrollIntoView({ block: "start" });
    } catch (error) {
      if (mine !== this.opened) return;
      show(this.trouble, error instanceof Error ? error.message : String(error));
      this.showList();
    }
  }

  private view(which: "list" | "sample"): void {
    this.listBox.hidden = which !== "list";
    this.back.parentElement!.hidden = which !== "sample";
  }

  private showList(): void {
    this.opened++;
    this.explorer?.close();
    this.explorer = null;
    this.view("list");
    if (this.list) return;
    this.list = new SampleList(this.listBox, this.source, this.catalogue, (row) => this.openRow(row));
    void this.list.load();
  }

  private openRow(row: Row): void {
    this.go({ ...NOWHERE, colour: this.place.colour, sample: row.sample_id, run: row.run, a: row.id }, true);
  }

  /** Change the address; ``turn`` makes it a step of the browser's history and shows what it names. */
  private go(place: Place, turn: boolean): void {
    this.place = place;
    const address = write(place);
    if (turn) {
      history.pushState(null, "", address || location.pathname + location.search);
      void this.follow();
    } else history.replaceState(null, "", address);
  }
}
