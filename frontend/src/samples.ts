// The list of traces with filters and sorting; rows come page by page.

import { h, show } from "./dom";
import { findLeads, type Lead } from "./leads";
import type { Place } from "./link";
import { fixed, NONE, plural } from "./numbers";
import { planes } from "./plane";
import { conditions } from "./ranges";
import type { Catalogue, Page, Query, Row, SortColumn, Source } from "./types";

export interface ListEvents {
  open(row: Row): void;
  lead(lead: Lead): void;
  /** The reader changed filters, sorting or page. */
  changed(query: Query): void;
}

/** Columns by name and unit; the catalogue has their meaning (orderlens.show.views.plain.LISTED names the same). */
const COLUMNS: { id: SortColumn; name: string; unit: string; text?: boolean }[] = [
  { id: "name", name: "Sample", unit: "", text: true },
  { id: "label", name: "Order", unit: "", text: true },
  { id: "var", name: "Var", unit: "nats²" },
  { id: "mean", name: "Mean log q", unit: "nats/token" },
  { id: "gap", name: "Gap", unit: "nats/token" },
  { id: "passes", name: "Passes", unit: "per text" },
  { id: "cascade", name: "EOS cascade", unit: "steps" },
  { id: "correct", name: "Correct", unit: "" },
];

export class SampleList {
  /** Number of the latest request; answers to earlier ones are dropped. */
  private request = 0;
  private readonly table = h("table", { class: "samples" });
  /** The rows of the page. */
  rows: Row[] = [];
  private readonly status = h("p", { class: "said", role: "status" });
  private readonly planeBox = h("div", { class: "planes" });
  private readonly planeFold = h("details", { class: "fold", toggle: () => void this.drawPlane() } as never, h("summary", {}, "Every trace on the plane of mean log q and Var"), this.planeBox);
  private readonly pager = h("div", { class: "pager" });
  private readonly leads = h("ul", { class: "leads", "aria-label": "Where to start" });
  /** The boxes and menus of the filters, by the part of the query they set. */
  private readonly boxes = new Map<keyof Query, HTMLInputElement | HTMLSelectElement>();

  constructor(
    root: HTMLElement,
    private readonly source: Source,
    private readonly catalogue: Catalogue,
    public query: Query,
    private readonly on: ListEvents,
  ) {
    const caption = h("p", { class: "small" }, "Each row is one sample under one order. Click a row to replay it, a column head to sort.");
    show(root, this.leads, this.filters(), this.status, source.plane && this.planeFold, h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Samples" }, this.table), this.pager, caption, this.meanings());
    this.fill();
    void this.load().then(() => this.lead());
  }

  /** Show the query of an address, unless it is shown already. */
  open(query: Query): void {
    if (JSON.stringify(query) === JSON.stringify(this.query)) return;
    this.query = query;
    this.fill();
    void this.load();
  }

  /** Put the focus on the row of the sample that was open before. */
  focus(place: Place): void {
    const links = [...this.table.querySelectorAll<HTMLElement>("tbody a")];
    const same = links.filter((link) => link.dataset["sample"] === place.sample);
    (same.find((link) => link.dataset["trace"] === place.a) ?? same[0])?.focus();
  }

  /** What each column means, readable without pointing at it. */
  private meanings(): HTMLElement {
    const { terms, graded } = this.catalogue;
    const shown = COLUMNS.filter((column) => terms[column.id] && (column.id !== "correct" || graded));
    return h("dl", { class: "terms" }, ...shown.map((column) => h("div", { id: `meaning-${column.id}` }, h("dt", {}, column.name), h("dd", {}, terms[column.id]!.meaning))));
  }

  private async lead(): Promise<void> {
    const found = await findLeads(this.source, this.catalogue.graded).catch(() => []);
    const items = found.map((lead) =>
      h("li", {}, h("button", { type: "button", click: () => this.on.lead(lead) }, h("b", {}, lead.title), h("span", { dir: "auto" }, lead.row.name), h("small", { dir: "auto" }, lead.what))),
    );
    show(this.leads, ...items);
    this.leads.classList.add("known");
  }

  /** Write the query into the boxes. */
  private fill(): void {
    for (const [name, box] of this.boxes) box.value = String(this.query[name]);
  }

  private filters(): HTMLElement {
    let wait = 0;
    const typed = (name: "text" | "where", id: string, placeholder: string) => {
      const box = h("input", { type: "search", id, placeholder, maxlength: 200, autocomplete: "off" });
      box.addEventListener("input", () => {
        window.clearTimeout(wait);
        wait = window.setTimeout(() => this.change({ text: this.boxes.get("text")!.value, where: this.boxes.get("where")!.value }), 180);
      });
      this.boxes.set(name, box);
      return box;
    };
    const search = typed("text", "find-text", "id, prompt or text");
    const where = typed("where", "find-where", "var > 0.5, mean < -1");
    where.title = "Conditions on var, mean, gap, passes, eos and n, separated by commas";
    const select = (part: "run" | "order" | "correct" | "cascade", name: string, options: [string, string][]) => {
      const id = `find-${part}`;
      const box = h("select", { id }, ...options.map(([value, text]) => h("option", { value }, text)));
      box.addEventListener("change", () => this.change({ [part]: part === "cascade" ? Number(box.value) : box.value }));
      this.boxes.set(part, box);
      return h("div", { class: "field" }, h("label", { for: id }, name), box);
    };
    const { runs, orders, graded } = this.catalogue;
    const named = (name: string): [string, string] => [name, name];
    return h(
      "form",
      { class: "filters", role: "search", "aria-label": "Filter the samples", submit: (event: Event) => event.preventDefault() } as never,
      h("div", { class: "field wide" }, h("label", { for: "find-text" }, "Search"), search),
      h("div", { class: "field where" }, h("label", { for: "find-where" }, "Numbers"), where),
      runs.length > 1 && select("run", "Run", [["", "all"], ...runs.map((run) => named(run.name))]),
      orders.length > 1 && select("order", "Order", [["", "all"], ...orders.map(named)]),
      graded && select("correct", "Verdict", [["", "any"], ["yes", "✓ correct"], ["no", "✗ wrong"], ["none", "– not graded"]]),
      select("cascade", "EOS cascade", [["0", "any"], ["2", "2 or more"], ["4", "4 or more"], ["8", "8 or more"]]),
    );
  }

  private change(part: Partial<Query>): void {
    this.query = { ...this.query, page: 0, ...part };
    this.on.changed(this.query);
    void this.load();
  }

  /** Load the rows read so far, then all rows; drop an answer that arrives after a newer request. */
  async load(): Promise<void> {
    const mine = ++this.request;
    this.table.setAttribute("aria-busy", "true");
    try {
      conditions(this.query.where); // a mistake is reported before anything is loaded
      for (const whole of [false, true]) {
        const page = await this.source.list({ ...this.query, whole });
        if (mine !== this.request) return;
        this.draw(page);
        if (page.state === "whole") break;
      }
    } catch (error) {
      if (mine === this.request) show(this.status, error instanceof Error ? error.message : String(error));
    }
    if (mine === this.request) this.table.removeAttribute("aria-busy");
    await this.drawPlane();
  }

  /** Draw the traces that fit the filters, while the section is open. */
  private async drawPlane(): Promise<void> {
    const mine = this.request;
    if (!this.planeFold.open || !this.source.plane) return;
    try {
      const found = await this.source.plane({ ...this.query, page: 0 });
      if (mine === this.request) show(this.planeBox, ...planes(found, (row) => this.on.open(row)));
    } catch (error) {
      if (mine === this.request) show(this.planeBox, error instanceof Error ? error.message : String(error));
    }
  }

  private draw(page: Page): void {
    const columns = COLUMNS.filter((column) => column.id !== "correct" || this.catalogue.graded);
    const several = this.catalogue.runs.length > 1;
    const heads = columns.map((column) => this.heading(column));
    const body = page.rows.map((row) => this.row(row, columns, several));
    show(this.table, h("thead", {}, h("tr", {}, ...heads, h("th", { scope: "col" }, "Text"))), h("tbody", {}, ...body));
    this.rows = page.rows;
    const first = this.query.page * page.size;
    const range = page.rows.length ? `${(first + 1).toLocaleString("en")}–${(first + page.rows.length).toLocaleString("en")} of ` : "";
    const more = { whole: "", traces: "; texts and verdicts are being read…", peek: " read so far; the others follow…" }[page.state];
    show(this.status, page.total ? `${range}${plural(page.total, "trace")}${more}` : `No trace fits these filters.${this.unknown()}`);
    const turn = (text: string, by: number, off: boolean) => h("button", { type: "button", disabled: off, click: () => this.change({ page: this.query.page + by }) }, text);
    const last = first + page.rows.length >= page.total;
    show(this.pager, ...(page.total > page.size ? [turn("← Previous", -1, first === 0), turn("Next →", 1, last)] : []));
  }

  /** Names a run or an order of the address that is not there. */
  private unknown(): string {
    const { runs, orders } = this.catalogue;
    const lost = [!runs.some((run) => run.name === this.query.run) && this.query.run && `run '${this.query.run}'`, !orders.includes(this.query.order) && this.query.order && `order '${this.query.order}'`];
    return lost.filter(Boolean).map((name) => ` There is no ${String(name)}.`).join("");
  }

  private heading(column: (typeof COLUMNS)[number]): HTMLElement {
    const sorted = this.query.sort === column.id;
    const way = sorted ? (this.query.descending ? "descending" : "ascending") : "none";
    const again = () => this.change({ sort: column.id, descending: sorted ? !this.query.descending : !column.text });
    const sign = sorted ? (this.query.descending ? " ↓" : " ↑") : "";
    return h(
      "th",
      { scope: "col", "aria-sort": way, class: column.text ? undefined : "n" } as never,
      h("button", { type: "button", click: again }, column.name + sign),
      this.catalogue.terms[column.id] && h("a", { class: "meaning", href: `#meaning-${column.id}`, "aria-label": `What ${column.name} means` }, "?"),
      column.unit && h("small", {}, column.unit),
    );
  }

  private row(row: Row, columns: typeof COLUMNS, several: boolean): HTMLElement {
    const open = (event: Event) => {
      event.preventDefault();
      this.on.open(row);
    };
    const name = h("a", { href: "#", dir: "auto", "data-sample": row.sample_id, "data-trace": row.id, click: open } as never, row.name);
    const cells: Record<SortColumn, () => HTMLElement> = {
      name: () => h("th", { scope: "row" }, name, several && h("small", { dir: "auto" }, ` ${row.run}`)),
      label: () => h("td", { dir: "auto" }, row.label),
      var: () => h("td", { class: "n" }, fixed(row.var, 3)),
      mean: () => h("td", { class: "n" }, fixed(row.mean, 3)),
      gap: () => h("td", { class: "n" }, fixed(row.gap, 3)),
      passes: () => h("td", { class: "n" }, row.passes),
      cascade: () => h("td", { class: "n" }, row.cascade || NONE),
      correct: () => h("td", { class: "n" }, row.correct === null ? NONE : row.correct ? "✓" : "✗"),
      n: () => h("td", { class: "n" }, row.n),
    };
    return h("tr", { click: (event: Event) => (event.target as Element).closest("a") || open(event) } as never, ...columns.map((column) => cells[column.id]()), h("td", { class: "text", dir: "auto" }, row.text ?? ""));
  }
}
