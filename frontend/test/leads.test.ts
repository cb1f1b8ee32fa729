import assert from "node:assert/strict";
import { test } from "node:test";
import { cascadeStart, findLeads } from "../src/leads";
import { isOurs, readList, writeList } from "../src/link";
import { FIRST, pick } from "../src/query";
import type { Sample, Source, Trace } from "../src/types";
import { revised, row } from "./traces";

const rows = [
  row("a", { id: "a1", gap: 0.5, var: 9 }),
  row("a", { id: "a2", gap: 0.5, order: "y", label: "y", var: 1 }),
  row("b", { id: "b1", var: 8, correct: true }),
  row("b", { id: "b2", var: 2, correct: false, order: "y", label: "y" }),
  row("c", { id: "c1", var: 3, cascade: 1 }),
];
const source: Source = {
  catalogue: () => Promise.reject(new Error("not asked")),
  list: (query) => Promise.resolve(pick(rows, query)),
  sample: () => Promise.reject(new Error("not asked")),
};
const trace = (id: string, mean: number, likelihood: string, temperature = 0): Trace => {
  const base = revised();
  return { ...base, id, likelihood, key: { ...base.key, temperature }, stats: { ...base.stats, mean } };
};
const sample = (...traces: Trace[]): Sample => ({ sample_id: "a", name: "a", prompt: null, suffix: null, pieces: {}, traces, divergences: [] });

test("leads: each kind once, each about another sample, and none where nothing shows it", async () => {
  const found = await findLeads(source, true);
  assert.deepEqual(found.map((lead) => [lead.title, lead.row.name]), [
    ["One order correct, another wrong", "b"],
    ["Largest gap between orders", "a"],
    ["Most uneven path", "c"],
  ]);
  assert.deepEqual(found[0]!.pair(sample()), ["b1", "b2"]);
  assert.deepEqual((await findLeads(source, false)).map((lead) => lead.row.name), ["a", "b"]);
});

test("leads take the largest value of the list, not the smallest", async () => {
  const many = [
    ...rows,
    row("d", { id: "d1", gap: 0.1, var: 0.5 }),
    row("e", { id: "e1", cascade: 2 }),
    row("f", { id: "f1", cascade: 7 }),
    row("g", { id: "g1", var: 20 }),
  ];
  const found = await findLeads({ ...source, list: (query) => Promise.resolve(pick(many, query)) }, false);
  assert.deepEqual(found.map((lead) => [lead.title, lead.row.id]), [
    ["Largest gap between orders", "a1"],
    ["The end is revealed first", "f1"],
    ["Most uneven path", "g1"],
  ]);
});

test("the orders that differ most are likelihoods of one temperature", async () => {
  const lead = (await findLeads(source, false))[0]!;
  const traces = [trace("a1", -3, "none"), trace("x", -1, "exact"), trace("y", -2, "estimate"), trace("z", -9, "exact", 1)];
  const set = { ...trace("s", -8, "exact"), n_passes: 2 };
  assert.deepEqual(lead.pair(sample(...traces, set)), ["x", "y"]);
});

test("the lead of a cascade opens where it starts", () => {
  const base = revised();
  const reveals = { ...base.reveals, is_eos: [1, 0, 1, 1], position: [0, 1, 3, 2] };
  assert.equal(cascadeStart({ ...base, reveals }), base.reveals.forward[2]! + 1);
  assert.equal(cascadeStart(base), null);
});

test("the address of a list leads back to it; other anchors are not ours", () => {
  const asked = { ...FIRST, text: "a&b", where: "var > 1", correct: "no" as const, cascade: 2, sort: "gap" as const, descending: true, page: 3 };
  assert.deepEqual(readList(writeList(asked)), asked);
  assert.equal(writeList(FIRST), "");
  assert.deepEqual(readList("#list&sort=nothing&page=-2&correct=maybe"), FIRST);
  assert.deepEqual(["", "#sample=x", "#list&page=1", "#figures", "#table-x"].map(isOurs), [true, true, true, false, false]);
});
