// The workspace as a tree whose folders are asked for when they are opened, and again when the job may
// have changed them.

import { listFolder } from "../api/client";
import { asProblem, type Problem } from "../api/problem";
import type { FolderEntry } from "../api/types";

export interface TreeRow {
  path: string;
  depth: number;
  entry: FolderEntry;
  open: boolean;
}

export class FileTree {
  /** What is in each folder that was opened; the workspace itself is the empty path. */
  folders = $state<Record<string, FolderEntry[]>>({});
  open = $state<Record<string, boolean>>({ "": true });
  problem = $state.raw<Problem>();
  loaded = $state(false);

  readonly #job: string;
  #running: Promise<void> | undefined;
  #again = false;

  constructor(job: string) {
    this.#job = job;
  }

  /** The rows that are seen, folders before files. */
  rows = $derived.by(() => {
    const rows: TreeRow[] = [];
    const visit = (folder: string, depth: number) => {
      for (const entry of sorted(this.folders[folder] ?? [])) {
        const path = folder === "" ? entry.name : `${folder}/${entry.name}`;
        const open = this.open[path] ?? false;
        rows.push({ path, depth, entry, open });
        if (entry.type === "folder" && open && depth < DEEPEST) visit(path, depth + 1);
      }
    };
    visit("", 0);
    return rows;
  });

  async toggle(path: string): Promise<void> {
    this.open[path] = !this.open[path];
    if (this.open[path]) await this.#load(path).catch((error) => (this.problem = asProblem(error)));
  }

  /** Asks for all open folders anew; while that goes on, a further wish is remembered once. */
  refresh(): Promise<void> {
    if (this.#running) {
      this.#again = true;
      return this.#running;
    }
    this.#running = this.#refresh().finally(() => {
      this.#running = undefined;
      if (this.#again) {
        this.#again = false;
        void this.refresh();
      }
    });
    return this.#running;
  }

  async #refresh(): Promise<void> {
    try {
      await this.#load("");
      this.problem = undefined;
      this.loaded = true;
    } catch (error) {
      this.problem = asProblem(error);
      return;
    }
    for (const path of Object.keys(this.open)) {
      if (path === "" || !this.open[path]) continue;
      // A folder that is gone is simply no longer open.
      await this.#load(path).catch(() => {
        delete this.open[path];
        delete this.folders[path];
      });
    }
  }

  async #load(path: string): Promise<void> {
    const { entries } = await listFolder(this.#job, path);
    this.folders[path] = entries;
  }
}

/** A hostile workspace can be deeper than any screen is wide. */
const DEEPEST = 40;

function sorted(entries: FolderEntry[]): FolderEntry[] {
  const rank = (entry: FolderEntry) => (entry.type === "folder" ? 0 : 1);
  return [...entries].sort((a, b) => rank(a) - rank(b) || a.name.localeCompare(b.name));
}
