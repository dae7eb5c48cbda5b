// The list of jobs as it stands, kept current by the server's own news of changes.

import { listJobs } from "../api/client";
import { asProblem, type Problem } from "../api/problem";
import { openStream, type Stream, type StreamState } from "../api/stream";
import type { JobStatus, ListedJob } from "../api/types";

const PAGE = 25;
const MOST_AT_ONCE = 200;

interface Question {
  filter: { status?: JobStatus; search?: string };
  wanted: number;
}

export class JobList {
  jobs = $state.raw<ListedJob[]>();
  more = $state(false);
  problem = $state.raw<Problem>();
  connection = $state.raw<StreamState>("connecting");
  loadingOlder = $state(false);
  search = $state("");
  status = $state<JobStatus | "">("");

  #stream: Stream;
  #asked = 0;
  #shown = 0;
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
    this.loadingOlder = true;
    await this.refresh();
    this.loadingOlder = false;
  }

  /**
   * Asks again for as many as are wanted. An answer counts unless somebody wants to know something else by
   * now, or a later one was there first: news that come faster than answers must not keep all of them from
   * being shown.
   */
  async refresh(): Promise<void> {
    const asked = (this.#asked += 1);
    const question = this.#question;
    const isLate = () => asked < this.#shown || question !== this.#question;
    try {
      const { filter, wanted } = JSON.parse(question) as Question;
      const jobs: ListedJob[] = [];
      let more = true;
      while (more && jobs.length < wanted) {
        const limit = Math.min(MOST_AT_ONCE, wanted - jobs.length);
        const last = jobs.at(-1)?.job_id;
        const page = await listJobs({ ...filter, limit, ...(last ? { before: last } : {}) });
        if (isLate()) return;
        jobs.push(...page.jobs);
        more = page.more;
      }
      this.#shown = asked;
      this.jobs = jobs;
      this.more = more;
      this.problem = undefined;
    } catch (error) {
      if (!isLate()) this.problem = asProblem(error);
    }
  }

  /** What is wanted now, as text, so that two questions can be compared. */
  get #question(): string {
    const search = this.search.trim().slice(0, 200);
    const filter = { ...(this.status ? { status: this.status } : {}), ...(search ? { search } : {}) };
    return JSON.stringify({ filter, wanted: this.#wanted } satisfies Question);
  }
}
