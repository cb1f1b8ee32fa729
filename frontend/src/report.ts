// The explorer inside a report: its samples are in the file, compressed.

import { App } from "./app";
import { h, show } from "./dom";
import { pick } from "./query";
import type { Catalogue, Row, Sample, Source } from "./types";

interface Bundle {
  catalogue: Catalogue;
  rows: Row[];
  samples: Sample[];
}

class FileSource implements Source {
  constructor(private readonly bundle: Bundle) {}

  async catalogue(): Promise<Catalogue> {
    return this.bundle.catalogue;
  }

  async list(query: Parameters<Source["list"]>[0]) {
    return pick(this.bundle.rows, query);
  }

  async sample(run: string, id: string): Promise<Sample> {
    const same = this.bundle.samples.filter((item) => item.sample_id === id);
    const found = same.find((item) => !run || item.traces.some((trace) => trace.key.run === run)) ?? same[0];
    if (!found) throw new Error("This sample is not in the report; open the run with 'orderlens view'.");
    return found;
  }
}

async function unpack(text: string): Promise<Bundle> {
  const bytes = Uint8Array.from(atob(text.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text()) as Bundle;
}

async function start(): Promise<void> {
  const root = document.getElementById("explorer");
  const packed = document.getElementById("samples-data")?.textContent;
  if (!root || !packed) return;
  try {
    const bundle = await unpack(packed);
    new App(root, new FileSource(bundle), bundle.catalogue);
  } catch (error) {
    show(root, `The samples could not be unpacked by this browser (${String(error)}).`);
  }
}

// Printing opens all folded sections.
window.addEventListener("beforeprint", () => {
  for (const item of document.querySelectorAll<HTMLDetailsElement>("main details")) item.open = true;
});

/** Add a link that saves the picture from the page itself. */
for (const figure of document.querySelectorAll("figure")) {
  const picture = figure.querySelector("img")?.src ?? "";
  const kind = /^data:image\/(svg|png)/.exec(picture)?.[1];
  if (kind && !figure.querySelector("figcaption a[href^=figures]")) figure.querySelector("figcaption")?.append(" ", h("a", { class: "save", href: picture, download: `${figure.id}.${kind}` }, `Save as ${kind.toUpperCase()}`));
}

/** Pictures that do not fit scroll sideways and can be reached with the Tab key; others are skipped. */
function reachable(): void {
  for (const box of document.querySelectorAll<HTMLElement>("figure .scroll")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
window.addEventListener("load", reachable);
window.addEventListener("resize", reachable);
void start();
