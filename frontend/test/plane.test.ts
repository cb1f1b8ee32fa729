import assert from "node:assert/strict";
import { test } from "node:test";
import { scale, shares, ticks, varTick } from "../src/plane";
import { countTicks } from "../src/plots";

test("positions lie inside the panel, and grow with the value", () => {
  for (const values of [[-3, -1, 0], [0, 0.001, 2], [5, 5]]) {
    const at = scale(values, true);
    const places = values.map(at);
    assert.ok(places.every((place) => place > 0 && place < 1), `${places}`);
    assert.deepEqual([...places].sort((a, b) => a - b), places);
  }
});

test("Var over decades is logarithmic: equal factors are equal distances", () => {
  const at = scale([0.001, 0.01, 0.1], true);
  assert.ok(Math.abs(at(0.01) - at(0.001) - (at(0.1) - at(0.01))) < 1e-9);
  const linear = scale([1, 2, 3], true);
  assert.ok(Math.abs(linear(2) - 0.5) < 1e-9);
});

test("shares add up to one", () => {
  const found = shares([0, 0.5, 0.999, 1]);
  assert.ok(Math.abs(found.reduce((a, b) => a + b) - 1) < 1e-9);
  assert.equal(found[0], 0.25);
  assert.equal(found.at(-1), 0.5);
});

test("labels of Var stay short", () => {
  assert.deepEqual([0, 0.000001, 0.00062, 0.0625, 1.25].map(varTick), ["0", "1e-6", "6.2e-4", "0.063", "1.3"]);
});

test("the middle label is left out where it would lie on another one", () => {
  const place = (value: number): number => 100 * value;
  assert.deepEqual(ticks([0, 0.3, 1], 0.5, place, 32), [0, 1, 0.5]);
  assert.deepEqual(ticks([0, 0.3, 1], 0.9, place, 32), [0, 1]);
  assert.deepEqual(ticks([2, 2], 2, place, 32), [2]);
});

test("an axis of steps labels every step of a short span, and the quarters of a long one", () => {
  assert.deepEqual(countTicks(6), [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(countTicks(64), [1, 16, 32, 48, 64]);
  assert.deepEqual(countTicks(0), []);
});
