// What a job's sandbox has, as far as the page can tell before it looks.

import { expect, test } from "@playwright/test";
import type { JobEvent } from "../../src/api/types";
import { begin } from "../../src/job/fold";
import { hasDesktop, hasJupyter } from "../../src/job/inside";

function jobWith(spec: Record<string, unknown>) {
  const scheduled = { seq: 1, at: "2026-11-16T04:00:00Z", job: "j", type: "scheduled", spec: { steps: [], network: "none", ...spec } };
  const view = begin(scheduled as unknown as JobEvent);
  if (!view) throw new Error("the first event begins a job");
  return view;
}

test("only the usual image is known to have no JupyterLab", () => {
  const cases: [Record<string, unknown>, jupyter: boolean, desktop: boolean][] = [
    [{ image: "base" }, false, false],
    [{ image: "base", desktop: { width: 640, height: 480 } }, true, true],
    [{ image: "desktop" }, true, true],
    [{ image: "our-lab" }, true, false],
  ];
  for (const [spec, jupyter, desktop] of cases) {
    const view = jobWith(spec);
    expect([hasJupyter(view), hasDesktop(view)], JSON.stringify(spec)).toEqual([jupyter, desktop]);
  }
});
