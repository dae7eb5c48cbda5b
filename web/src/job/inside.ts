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

/** Whether the image of such a job has JupyterLab. */
export function hasJupyter({ spec }: JobView): boolean {
  return spec.desktop != null || spec.image === "desktop";
}

/** Whether such a job has a desktop: its image has one, or it works with one. */
export function hasDesktop(view: JobView): boolean {
  return hasJupyter(view) || view.moments.some((moment) => moment.kind === "step" && ON_THE_DESKTOP.includes(moment.step.call.tool));
}

/** Which notebooks a job leaves: one for each language whose kernel its steps used. */
export function notebooksOf(view: JobView): NotebookFile[] {
  return FILES.filter(({ tool }) =>
    view.moments.some((moment) => moment.kind === "step" && moment.step.call.tool === tool && moment.step.call["fresh"] !== true),
  );
}
