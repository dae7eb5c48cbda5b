// The panes of a job's page, one line each. A pane is a component that gets the live job; it is loaded
// when it is first looked at, so it costs the page's first load nothing. To add one, add a line.

import type { Component } from "svelte";
import { hasEnded, type JobAccess } from "../api/types";
import type { IconName } from "../parts/Icon.svelte";
import type { JobView } from "./fold";
import type { LiveJob } from "./live.svelte";
import { hasDesktop, hasJupyter, notebooksOf } from "./inside";

export interface Pane {
  id: string;
  label: string;
  icon: IconName;
  /** Whether there is anything for it to show, now or later, of such a job. */
  suits(view: JobView, access: JobAccess): boolean;
  /** A number worth knowing before one looks. */
  badge?(view: JobView): number | undefined;
  load(): Promise<{ default: Component<{ job: LiveJob }> }>;
}

/** What runs in a sandbox is for those who may change the job; what is left of it, for those who may read files. */
function mayLook(view: JobView, access: JobAccess): boolean {
  return hasEnded(view.status) ? access.files : access.change;
}

export const panes: Pane[] = [
  {
    id: "desktop",
    label: "Desktop",
    icon: "system",
    suits: (view, access) => mayLook(view, access) && hasDesktop(view),
    load: () => import("../panes/Desktop.svelte"),
  },
  {
    id: "files",
    label: "Files",
    icon: "folder",
    suits: (_view, access) => access.files,
    load: () => import("../panes/Files.svelte"),
  },
  {
    id: "notebook",
    label: "Notebook",
    icon: "code",
    suits: (view, access) => mayLook(view, access) && (hasJupyter(view) || notebooksOf(view).length > 0),
    load: () => import("../panes/Notebook.svelte"),
  },
  {
    id: "terminal",
    label: "Terminal",
    icon: "terminal",
    suits: (_view, access) => access.change,
    load: () => import("../panes/Terminal.svelte"),
  },
  {
    id: "apps",
    label: "Apps",
    icon: "window",
    suits: (_view, access) => access.change,
    load: () => import("../panes/Apps.svelte"),
  },
  {
    id: "network",
    label: "Network",
    icon: "globe",
    suits: () => true,
    badge: (view) => view.destinations.length || undefined,
    load: () => import("../panes/Network.svelte"),
  },
  {
    id: "context",
    label: "Context",
    icon: "memory",
    suits: (view, access) => "task" in view.spec && access.mind,
    load: () => import("../panes/Context.svelte"),
  },
  {
    id: "log",
    label: "Log",
    icon: "log",
    suits: () => true,
    load: () => import("../panes/Log.svelte"),
  },
];
