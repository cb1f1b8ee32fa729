import assert from "node:assert/strict";
import { test } from "node:test";
import { fixed, percent, plural, probability } from "../src/numbers";
import { largestEntropy, tints } from "../src/scales";
import { withCodes } from "../src/tokens";
import { revised } from "./traces";

test("numbers as people read them", () => {
  assert.deepEqual([fixed(-0.5), fixed(-0.001), fixed(null), fixed(2.345, 1)], ["−0.50", "0.00", "–", "2.3"]);
  assert.deepEqual([probability(0), probability(Math.log(0.5)), probability(-10), probability(null)], ["1.000", "0.50", "4.5 × 10⁻⁵", "–"]);
  assert.equal(probability(-1e-5), "> 0.999");
  assert.deepEqual([percent(0.123), plural(1, "token"), plural(1200, "token")], ["12 %", "1 token", "1,200 tokens"]);
});

test("tokens without width or text are visible", () => {
  assert.deepEqual(["\u200b", "a\ufeff", "", " b"].map(withCodes), ["⟨U+200B⟩", "a⟨U+FEFF⟩", "∅", " b"]);
});

test("tints run from 0 to 1, and unknown is not 0", () => {
  const trace = revised();
  assert.deepEqual(tints(trace, "order"), [0, 1 / 3, 2 / 3, 1]);
  assert.deepEqual(tints(trace, "entropy"), [0.1, 1, 0.5, null]);
  assert.ok(Math.abs(tints(trace, "confidence")[3]! - (1 - Math.exp(-3))) < 1e-12);
  assert.equal(largestEntropy(trace), 2);
});
