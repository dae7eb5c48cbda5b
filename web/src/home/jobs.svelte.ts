// The list of jobs as it stands, kept current by the server's own news of changes.

import { listJobs } from "../api/client";
import { asProblem, type Problem } from "../api/problem";
import { openStream, type Stream, type StreamState } from "../api/stream";
import type { JobStatus, ListedJob } from "../api/types";

const PAGE = 25;
const MOST_AT_ONCE = 200;

export class JobList {
  jobs = $state.raw<ListedJob[]>();
  more = $state(false);
  problem = $state.raw<Problem>();
  connection = $state.raw<StreamState>("connecting");
  loading = $state(false);
  search = $state("");
  status = $state<JobStatus | "">("");

  #stream: Stream;
  #asked = 0;
  #wanted = PAGE;
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(onBack: () => void) {
    // The first message of a stream says "look at all of them", also after a break.
    this.#stream = openStream(
      () => "/changes",
      () => void this.refresh(),
      (state) => {
        this.connection = state;
        if (state === "open") onBack();
        // The stream cannot say why it is refused; this answer can.
        if (state === "lost") void this.refresh();
      },
    );
    void this.refresh();
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#stream.close();
  }

  get isFiltered(): boolean {
    return this.search.trim() !== "" || this.status !== "";
  }

  /** After a key was pressed, when no other follows at once. */
  refreshSoon(): void {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => void this.refresh(), 150);
  }

  async loadOlder(): Promise<void> {
    this.#wanted = (this.jobs?.length ?? 0) + PAGE;
    await this.refresh();
  }

  /** Asks again for as many as are wanted. An answer that a later question overtook is not looked at. */
  async refresh(): Promise<void> {
    const asked = (this.#asked += 1);
    this.loading = true;
    const search = this.search.trim().slice(0, 200);
    const filter = { ...(this.status ? { status: this.status } : {}), ...(search ? { search } : {}) };
    try {
      const jobs: ListedJob[] = [];
      let more = true;
      while (more && jobs.length < this.#wanted) {
        const limit = Math.min(MOST_AT_ONCE, this.#wanted - jobs.length);
        const last = jobs.at(-1)?.job_id;
        const page = await listJobs({ ...filter, limit, ...(last ? { before: last } : {}) });
        if (asked !== this.#asked) return;
        jobs.push(...page.jobs);
        more = page.more;
      }
      this.jobs = jobs;
      this.more = more;
      this.problem = undefined;
    } catch (error) {
      if (asked === this.#asked) this.problem = asProblem(error);
    }
    if (asked === this.#asked) this.loading = false;
  }
}
