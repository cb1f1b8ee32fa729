// The explorer of the local viewer: rows and samples come from its server, under the token of the address.

import { App } from "./app";
import { h, show } from "./dom";
import { plural } from "./numbers";
import type { Catalogue, Page, PlanePoints, Query, Sample, Source } from "./types";

const token = new URLSearchParams(location.search).get("token") ?? "";

async function ask(path: string, parts: Record<string, string | string[]>): Promise<Response> {
  const address = new URL(path, location.origin);
  for (const [name, value] of Object.entries(parts)) for (const item of [value].flat()) address.searchParams.append(name, item);
  let answer: Response;
  try {
    answer = await fetch(address, { headers: { "X-OrderLens-Token": token }, cache: "no-store" });
  } catch {
    throw new Error("The viewer does not answer: was 'orderlens view' stopped?");
  }
  if (answer.ok) return answer;
  const body = (await answer.json()) as { error?: string };
  throw new Error(body.error ?? `the server answered ${answer.status}`);
}

async function get<T>(path: string, parts: Record<string, string> = {}): Promise<T> {
  return (await ask(path, parts)).json() as Promise<T>;
}

function asText(query: Query): Record<string, string> {
  return Object.fromEntries(Object.entries(query).map(([name, value]) => [name, String(value)]));
}

class ServerSource implements Source {
  catalogue(): Promise<Catalogue> {
    return get("/api/catalogue");
  }

  list(query: Query): Promise<Page> {
    return get("/api/samples", asText(query));
  }

  plane(query: Query): Promise<PlanePoints> {
    return get("/api/plane", asText(query));
  }

  sample(run: string, id: string): Promise<Sample> {
    return get("/api/sample", { run, id });
  }

  async film(run: string, id: string, traces: string[]): Promise<Blob> {
    return (await ask("/api/film", { run, id, trace: traces })).blob();
  }
}

async function start(): Promise<void> {
  const root = document.getElementById("explorer")!;
  const runs = document.getElementById("runs")!;
  const source = new ServerSource();
  try {
    const catalogue = await source.catalogue();
    const lines = catalogue.runs.map((run) => h("li", {}, h("b", { dir: "auto" }, run.name), ` ${run.facts}`));
    const notes = catalogue.notes.map((note) => h("p", { class: "quiet" }, note));
    const listed = h("ul", {}, ...lines);
    show(runs, lines.length > 2 ? h("details", {}, h("summary", {}, plural(lines.length, "run")), listed) : listed, ...notes);
    new App(root, source, catalogue);
  } catch (error) {
    show(root, h("p", { class: "trouble", role: "alert" }, error instanceof Error ? error.message : String(error)));
  }
}

void start();
