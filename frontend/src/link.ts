// The place a reader is at, as the part of the address behind '#': copied, it leads back there.

import { COLOURS, type Colour } from "./scales";

export interface Place {
  sample: string | null;
  run: string;
  a: string;
  b: string;
  /** Passes done; null is the finished text. */
  pass: number | null;
  colour: Colour;
}

export const NOWHERE: Place = { sample: null, run: "", a: "", b: "", pass: null, colour: "confidence" };

export function write(place: Place): string {
  if (place.sample === null) return "";
  const parts = new URLSearchParams({ sample: place.sample });
  if (place.run) parts.set("run", place.run);
  if (place.a) parts.set("a", place.a);
  if (place.b) parts.set("b", place.b);
  if (place.pass !== null) parts.set("step", String(place.pass));
  if (place.colour !== NOWHERE.colour) parts.set("colour", place.colour);
  return `#${parts.toString()}`;
}

export function read(hash: string): Place {
  const parts = new URLSearchParams(hash.replace(/^#/, ""));
  const pass = Number.parseInt(parts.get("step") ?? "", 10);
  return {
    sample: parts.get("sample"),
    run: parts.get("run") ?? "",
    a: parts.get("a") ?? "",
    b: parts.get("b") ?? "",
    pass: Number.isFinite(pass) && pass >= 0 ? pass : null,
    colour: COLOURS.find((item) => item.id === parts.get("colour"))?.id ?? NOWHERE.colour,
  };
}
