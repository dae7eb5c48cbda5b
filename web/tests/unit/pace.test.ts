// How good a desktop's pictures are, by how they arrive.

import { expect, test } from "@playwright/test";
import { LADDER, nextStep, Pace, type Sample } from "../../src/desktop/pace";

const sample = (latency: number, kilobytes = 500): Sample => ({ latency, bytesPerSecond: kilobytes * 1024 });
const times = (n: number, of: Sample) => Array.from({ length: n }, () => of);
const LAST = LADDER.length - 1;

test("each step of the ladder asks for less than the one before", () => {
  for (const [i, [quality, compression]] of LADDER.entries()) {
    const next = LADDER[i + 1];
    if (next) expect(quality > next[0] && compression < next[1]).toBe(true);
    for (const level of [quality, compression]) expect(level >= 0 && level <= 9 && Number.isInteger(level)).toBe(true);
  }
});

test("words that wait behind pictures make the pictures smaller, one that waits alone does not", () => {
  expect(nextStep(0, [sample(5), sample(400), sample(420)])).toBe(1);
  expect(nextStep(0, [sample(5), sample(4000), sample(5000)])).toBe(2);
  expect(nextStep(LAST, [sample(5), sample(4000), sample(5000)])).toBe(LAST);
  expect(nextStep(0, [sample(5), sample(400)])).toBe(0);
  expect(nextStep(0, [sample(5), sample(400), sample(6), sample(400)])).toBe(0);
});

test("a line that is only long is not a full one", () => {
  expect(nextStep(1, times(3, sample(600)))).toBe(1);
  expect(nextStep(1, times(20, sample(600)))).toBe(0);
});

test("a word that is late while next to nothing arrives is not late for the pictures", () => {
  expect(nextStep(0, [sample(5, 1), sample(900, 1), sample(900, 1), sample(900, 1)])).toBe(0);
});

test("what has room grows again, but not into what did not fit before", () => {
  const full = [sample(5), sample(800, 300), sample(800, 320)];
  expect(nextStep(2, times(6, sample(8, 100)), full)).toBe(1);
  expect(nextStep(2, times(5, sample(8, 100)), full)).toBe(2);
  expect(nextStep(2, times(6, sample(8, 250)), full)).toBe(2);
  expect(nextStep(0, times(50, sample(8, 100)))).toBe(0);
});

test("a slow line is followed to the end of the ladder, and a line that is mended back to its beginning", () => {
  const pace = new Pace();
  expect(pace.take(sample(5))).toBe(false);
  for (let i = 0; i < 20; i += 1) pace.take(sample(2000, 80));
  expect(pace.step).toBe(LAST);
  let changes = 0;
  for (let i = 0; i < 60; i += 1) if (pace.take(sample(6, 20))) changes += 1;
  expect([pace.step, changes]).toEqual([0, LAST]);
});
