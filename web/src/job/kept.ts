// After which steps of a job its files were kept: the same rules as the server's own. What was kept can be
// gone on from in another job, and seen as what a step changed.

import type { JobEvent } from "../api/types";
import type { JobView, Step } from "./fold";

/** Whether the files as they were after a step are kept. */
export interface Keeping {
  step: number;
  stored: boolean;
}

/** Takes in an event that is about kept files; `lastStep` tells the newest step before it. */
export function keep(kept: Keeping[], event: JobEvent, lastStep: () => number): Keeping[] {
  switch (event.type) {
    case "sandbox.lost": {
      const until = event.kept;
      return until == null ? [] : kept.filter(({ step }) => step <= until);
    }
    case "checkpoint.stored":
      kept.push({ step: event.step, stored: true });
      return kept;
    case "checkpoint.skipped":
      kept.push({ step: event.step, stored: false });
      return kept;
    case "workspace.restored": {
      // The workspace is from now on what was kept, whatever was not.
      const isKnown = event.checkpoint != null || kept.some(({ stored }) => stored);
      const isNews = event.checkpoint != null || kept.at(-1)?.stored === false;
      return isKnown && isNews ? [...kept, { step: lastStep(), stored: true }] : kept;
    }
    default:
      return kept;
  }
}

/** Whether the files as they were after a step can be had. Where nothing was done to them, they are known. */
export function isKeptAfter({ kept }: JobView, n: number): boolean {
  // They are in the order of their steps, and a long job has many: the last one that counts is looked for by halves.
  let [from, to] = [0, kept.length];
  while (from < to) {
    const middle = (from + to) >> 1;
    if ((kept[middle]?.step ?? 0) <= n) from = middle + 1;
    else to = middle;
  }
  return kept[from - 1]?.stored ?? true;
}

/** The step before the first of this job: a task that goes on from another one counts on from there. */
export function baseOf({ spec }: JobView): number {
  return spec.fork?.heard != null ? spec.fork.step : 0;
}

/** The steps that another job can go on from, the newest last. */
export function forkable(view: JobView): number[] {
  return [baseOf(view), ...stepsOver(view).map(({ n }) => n)].filter((n) => isKeptAfter(view, n));
}

/** The steps that changed files, where it can be seen what they changed. */
export function withDiff(view: JobView): Step[] {
  return stepsOver(view).filter(({ n, changes }) => changes && isKeptAfter(view, n - 1) && isKeptAfter(view, n));
}

function stepsOver(view: JobView): Step[] {
  return view.moments.flatMap((moment) => (moment.kind === "step" && !moment.void && moment.step.status !== "running" ? [moment.step] : []));
}
