// Which files of a job were kept, and so can be gone on from and compared.

import { expect, test } from "@playwright/test";
import type { JobAccess, JobEvent } from "../../src/api/types";
import { apply, begin, type JobView } from "../../src/job/fold";
import { baseOf, forkable, isKeptAfter, withDiff } from "../../src/job/kept";
import { panes } from "../../src/job/panes";

function fold(spec: Record<string, unknown>, ...bodies: Record<string, unknown>[]): JobView {
  const events = [{ type: "scheduled", spec: { steps: [], network: "none", ...spec } }, ...bodies].map(
    (body, i) => ({ seq: i + 1, at: "2026-11-16T04:00:00Z", job: "j", ...body }) as unknown as JobEvent,
  );
  const view = begin(events[0]!);
  if (!view) throw new Error("the first event begins a job");
  for (const event of events.slice(1)) apply(view, event);
  return view;
}

const step = (n: number, tool = "shell") => [
  { type: "step.started", n, call: { tool } },
  { type: "step.finished", n, outcome: { status: "succeeded" } },
];
const stored = (n: number) => ({ type: "checkpoint.stored", step: n, checkpoint: n * 10, added: 1, changed: 0, deleted: 0 });
const skipped = (n: number) => ({ type: "checkpoint.skipped", step: n, reason: "too large" });
const numbers = (view: JobView) => withDiff(view).map(({ n }) => n);

test("every step has the files that were kept last, until some were not", () => {
  const view = fold({}, ...step(1), ...step(2), stored(2), ...step(3), ...step(4), skipped(4), ...step(5), ...step(6), stored(6), ...step(7));
  expect([1, 2, 3, 4, 5, 6, 7].map((n) => isKeptAfter(view, n))).toEqual([true, true, true, false, false, true, true]);
  expect(forkable(view)).toEqual([0, 1, 2, 3, 6, 7]);
  // The files before the sixth are not known, and the others changed none.
  expect(numbers(view)).toEqual([2]);
});

test("a step that still runs is no place to go on from", () => {
  expect(forkable(fold({}, ...step(1), { type: "step.started", n: 2, call: { tool: "shell" } }))).toEqual([0, 1]);
});

test("a lost sandbox takes what is void with it", () => {
  const steps = [...step(1), stored(1), ...step(2), skipped(2)];
  expect(forkable(fold({}, ...steps, { type: "sandbox.lost", reason: "gone" }))).toEqual([0]);
  const kept = fold({}, ...steps, { type: "sandbox.lost", reason: "gone", kept: 1 });
  expect([forkable(kept), numbers(kept)]).toEqual([[0, 1], [1]]);
});

test("what a restored workspace holds is known again", () => {
  const view = fold({}, ...step(1), stored(1), ...step(2), skipped(2), { type: "workspace.restored", step: 1, checkpoint: 10, why: "request" }, ...step(3));
  expect(forkable(view)).toEqual([0, 1, 2, 3]);
});

test("a task that goes on from another one counts on from there", () => {
  const view = fold({ fork: { job: "p", step: 4, checkpoint: 3, heard: 20 } }, { type: "workspace.restored", step: 4, checkpoint: 3, why: "fork" }, ...step(5), stored(5));
  expect([baseOf(view), forkable(view), numbers(view)]).toEqual([4, [4, 5], [5]]);
  expect(baseOf(fold({ fork: { job: "p", step: 4, checkpoint: 3 } }))).toBe(0);
});

test("who may not reach into a sandbox sees what is left of it, if they may read files", () => {
  const shown = (view: JobView, access: Partial<JobAccess>) =>
    panes.filter((pane) => pane.suits(view, { change: false, files: false, output: false, mind: false, ...access })).map(({ id }) => id);
  const running = fold({ image: "desktop" }, { type: "claimed", generation: 1 }, ...step(1, "python"));
  expect(shown(running, { files: true })).toEqual(["files", "network", "log"]);
  expect(shown(running, { files: true, change: true })).toEqual(["desktop", "files", "notebook", "terminal", "apps", "network", "log"]);
  apply(running, { seq: 99, at: "", job: "j", type: "finished", end: { status: "completed", failed_steps: [] } } as unknown as JobEvent);
  expect(shown(running, { files: true })).toEqual(["desktop", "files", "notebook", "network", "log"]);
  expect(shown(running, {})).toEqual(["network", "log"]);
  // An image of another name has a desktop as soon as somebody works with it.
  const other = fold({ image: "own" }, { type: "claimed", generation: 1 });
  expect(shown(other, { change: true })).not.toContain("desktop");
  expect(shown(fold({ image: "own" }, { type: "claimed", generation: 1 }, ...step(1, "browser")), { change: true })).toContain("desktop");
});
