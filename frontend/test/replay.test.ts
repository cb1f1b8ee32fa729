// The case of tests/show/views/test_views.py: the two replays agree.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Timeline } from "../src/replay";
import { revised } from "./traces";

const states = (pass: number) => {
  const timeline = new Timeline(revised());
  return timeline.positions.map((place) => timeline.cell(place, pass)).map((cell) => `${cell.state} ${cell.token}`);
};

test("masked, new, earlier, edited, remasked", () => {
  assert.deepEqual(states(-1), Array(4).fill("masked null"));
  assert.deepEqual(states(0), ["new 5", "masked null", "masked null", "masked null"]);
  assert.deepEqual(states(1), ["earlier 5", "new 6", "new 7", "new 9"]);
  assert.deepEqual(states(2), ["earlier 5", "earlier 6", "earlier 7", "remasked 9"]);
  assert.deepEqual(states(3), ["earlier 5", "edited 4", "earlier 7", "masked null"]);
  assert.deepEqual(states(4), ["earlier 5", "earlier 4", "earlier 7", "new 8"]);
});

test("changes are counted by pass, reveals listed by pass", () => {
  const timeline = new Timeline(revised());
  assert.deepEqual([0, 1, 2, 3, 4].map((pass) => timeline.changedBy(pass)), [0, 0, 1, 1, 0]);
  assert.deepEqual(timeline.stepsOf.get(1), [1, 2]);
  assert.deepEqual([0, 1, 2, 3, 4].map((pass) => timeline.revealedBy(pass)), [1, 3, 0, 0, 1]);
});
