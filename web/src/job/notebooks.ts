// Which notebooks a job leaves: one for each language whose kernel its steps used.

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

/** Whether the image of such a job has JupyterLab. */
export function hasJupyter({ spec }: JobView): boolean {
  return spec.desktop != null || spec.image === "desktop";
}

export function notebooksOf(view: JobView): NotebookFile[] {
  return FILES.filter(({ tool }) =>
    view.moments.some((moment) => moment.kind === "step" && moment.step.call.tool === tool && moment.step.call["fresh"] !== true),
  );
}
