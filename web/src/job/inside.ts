// What a job's sandbox has beside a shell, as far as its events tell: a desktop, JupyterLab, kernels.

import type { JobView } from "./fold";

export interface NotebookFile {
  tool: string;
  label: string;
  path: string;
}

const FILES: NotebookFile[] = [
  { tool: "python", label: "Python", path: "python.ipynb" },
  { tool: "typescript", label: "TypeScript", path: "typescript.ipynb" },
];

const ON_THE_DESKTOP = ["computer", "browser", "xdot"];

/**
 * Whether the image of such a job may have JupyterLab. The usual image has none, as we know; what another one has is
 * its maker's to know, and JupyterLab's own page says so where there is none.
 */
export function hasJupyter({ spec }: JobView): boolean {
  return spec.desktop != null || spec.image !== "base";
}

/** Whether such a job has a desktop: its image has one, or it works with one. */
export function hasDesktop(view: JobView): boolean {
  return view.spec.desktop != null || view.spec.image === "desktop" || view.moments.some((moment) => moment.kind === "step" && ON_THE_DESKTOP.includes(moment.step.call.tool));
}

/** Which notebooks a job leaves: one for each language whose kernel its steps used. */
export function notebooksOf(view: JobView): NotebookFile[] {
  return FILES.filter(({ tool }) =>
    view.moments.some((moment) => moment.kind === "step" && moment.step.call.tool === tool && moment.step.call["fresh"] !== true),
  );
}
