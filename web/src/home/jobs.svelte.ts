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
  #timer: ReturnType<typeof setTimeout> | undefined;

  constructor(onBack: () => void) {
    // The first message of a stream says "look at all of them", also after a break.
    this.#stream = openStream(
      () => "/changes",
      () => void this.refresh(),
      (state) => {
        this.connection = state;
        if (state === "open") onBack();
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

  /** Asks again for as many as are shown, as far as the server gives that many at once. */
  async refresh(): Promise<void> {
    const shown = Math.min(MOST_AT_ONCE, Math.max(PAGE, this.jobs?.length ?? 0));
    await this.#load({ limit: shown }, ({ jobs, more }) => {
      const rest = this.jobs?.slice(shown) ?? [];
      const oldest = jobs.at(-1)?.job_id ?? "";
      this.jobs = more ? [...jobs, ...rest.filter((job) => job.job_id < oldest)] : jobs;
      this.more = more && rest.length === 0 ? true : more && this.more;
    });
  }

  async loadOlder(): Promise<void> {
    const before = this.jobs?.at(-1)?.job_id;
    if (!before) return;
    await this.#load({ limit: PAGE, before }, ({ jobs, more }) => {
      this.jobs = [...(this.jobs ?? []), ...jobs];
      this.more = more;
    });
  }

  /** An answer that was overtaken by a later question is not looked at. */
  async #load(
    page: { limit: number; before?: string },
    take: (answer: { jobs: ListedJob[]; more: boolean }) => void,
  ): Promise<void> {
    const asked = (this.#asked += 1);
    this.loading = true;
    const search = this.search.trim().slice(0, 200);
    try {
      const answer = await listJobs({
        ...page,
        ...(this.status ? { status: this.status } : {}),
        ...(search ? { search } : {}),
      });
      if (asked !== this.#asked) return;
      take(answer);
      this.problem = undefined;
    } catch (error) {
      if (asked === this.#asked) this.problem = asProblem(error);
    }
    if (asked === this.#asked) this.loading = false;
  }
}
