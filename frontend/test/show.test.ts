import assert from "node:assert/strict";
import { test } from "node:test";
import { amongAll, fixed, percent, plural, probability } from "../src/numbers";
import { largestEntropy, tints } from "../src/scales";
import { withCodes } from "../src/tokens";
import { revised } from "./traces";

test("numbers as people read them", () => {
  assert.deepEqual([fixed(-0.5), fixed(-0.001), fixed(null), fixed(2.345, 1)], ["−0.50", "0.00", "–", "2.3"]);
  assert.deepEqual([probability(0), probability(Math.log(0.5)), probability(-10), probability(null)], ["1.000", "0.50", "4.5 × 10⁻⁵", "–"]);
  assert.equal(probability(-1e-5), "> 0.999");
  assert.deepEqual([percent(0.123), plural(1, "token"), plural(1200, "token")], ["12 %", "1 token", "1,200 tokens"]);
});

test("a place among all orders", () => {
  const place = { share_below: 719 / 720, share_error: 0, n_orders: 720, regret: 0 };
  assert.deepEqual(amongAll(place), ["above 99.9 %", "99.86 % of 720 orders have a lower log P; 0.00 nats below the best"]);
  assert.equal(amongAll({ ...place, share_below: 0.99999 })[1].slice(0, 7), "99.99 %");
  assert.deepEqual(amongAll({ ...place, share_below: 0 }), ["all equal", "log P does not depend on the order (720 orders)"]);
  const set = { share_below: 1, share_error: 0.0001, n_orders: 6227020800, regret: -0.151 };
  assert.deepEqual(amongAll(set), ["above about 100.0 %", "about 100.00 % of 6,227,020,800 orders have a lower log P; 0.15 nats above the best order"]);
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
