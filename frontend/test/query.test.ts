import assert from "node:assert/strict";
import { test } from "node:test";
import { read, write } from "../src/link";
import { FIRST, pick } from "../src/query";
import { row } from "./traces";

const rows = [
  row("a", { var: 2, correct: true, text: "Hello there" }),
  row("b", { var: null, correct: false, order: "y", cascade: 3 }),
  row("c", { var: 5, run: "s" }),
];
const names = (part: object) => pick(rows, { ...FIRST, sort: "var", descending: true, ...part }).rows.map((item) => item.name);

test("sorted either way, undefined values last", () => {
  assert.deepEqual(names({}), ["c", "a", "b"]);
  assert.deepEqual(names({ descending: false }), ["a", "c", "b"]);
  assert.deepEqual(names({ sort: "name", descending: false }), ["a", "b", "c"]);
});

test("filters", () => {
  assert.deepEqual(names({ text: "HELLO" }), ["a"]);
  assert.deepEqual(names({ run: "s" }), ["c"]);
  assert.deepEqual(names({ order: "y" }), ["b"]);
  assert.deepEqual(names({ correct: "no" }), ["b"]);
  assert.deepEqual(names({ correct: "none" }), ["c"]);
  assert.deepEqual(names({ cascade: 2 }), ["b"]);
  assert.equal(pick(rows, { ...FIRST, page: 1 }).rows.length, 0);
});

test("conditions on numbers, all of which must hold", () => {
  assert.deepEqual(names({ where: "var > 2" }), ["c"]);
  assert.deepEqual(names({ where: "VAR>=2, n > 0" }), ["c", "a"]);
  assert.deepEqual(names({ where: "eos ≥ 3" }), ["b"]);
  assert.deepEqual(names({ where: "var < 1e3 and var > -1; var <= 4" }), ["a"]);
  assert.deepEqual(names({ where: " , " }), ["c", "a", "b"]);
  for (const wrong of ["var", "var > x", "text > 1", "var >> 1", "var > 1 2", "1 < var"]) {
    assert.throws(() => names({ where: wrong }), /is not a condition; write for example/);
  }
});

test("an address leads back to where it was written, whatever the names hold", () => {
  const place = { sample: "a&b=c#<x>", run: "r 1", a: "random:3+top=4", b: "max-prob", pass: 12, colour: "order" as const };
  assert.deepEqual(read(write(place)), place);
  assert.equal(write({ ...place, sample: null }), "");
  assert.deepEqual(read("#step=-4&colour=pink&sample=q"), { sample: "q", run: "", a: "", b: "", pass: null, colour: "confidence" });
});
