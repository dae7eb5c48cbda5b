// One job as it happens: follows its event log to the end, missing nothing, whatever happens to the
// connection or the server meanwhile. What is shown is only ever what the log says.

import { getStatus } from "../api/client";
import { asProblem, type Problem } from "../api/problem";
import { openStream, type Stream, type StreamState } from "../api/stream";
import { hasEnded, type JobAccess, type JobEvent } from "../api/types";
import { isShared } from "../shell/shared";
import { apply, begin, type JobView } from "./fold";

/** One line of the log as it came, for whoever wants to see it raw. */
export interface LogLine {
  seq: number;
  at: string;
  type: string;
  text: string;
}

/** Milliseconds. More often than this nobody sees anything new. */
const FRAME = 16;

export class LiveJob {
  view = $state<JobView>();
  problem = $state.raw<Problem>();
  connection = $state.raw<StreamState | "over">("connecting");
  /** The raw log. Not looked at line by line, so that a long one costs little; see `lineCount`. */
  readonly lines: LogLine[] = [];
  lineCount = $state(0);

  /** What may be done with the job from here; nothing until the server has said so. */
  access = $state.raw<JobAccess>({ change: false, files: false, output: false, mind: false });

  /** Where a VNC viewer finds the desktop, and the password that it is asked for. */
  vnc = $state.raw<{ port: number; password: string }>();

  /** The job had ended before the page was opened. */
  wasOver = false;

  readonly id: string;
  #stream: Stream | undefined;
  #waiting: string[] = [];
  #timer: ReturnType<typeof setTimeout> | undefined;
  #received = 0;
  #drawn = 0;

  constructor(id: string) {
    this.id = id;
    void this.#open();
  }

  async #open(): Promise<void> {
    if (!(await this.#mayFollow()) || this.#closed) return;
    this.#stream = openStream(
      () => `/jobs/${encodeURIComponent(this.id)}/events?after=${this.#received}`,
      (data) => this.#receive(data),
      (state) => {
        if (this.connection === "over") return;
        this.connection = state;
        if (state === "open") this.problem = undefined;
        if (state === "lost") void this.#mayFollow();
      },
    );
  }

  /** An event stream cannot say why it is refused, so that is asked beside it. */
  async #mayFollow(): Promise<boolean> {
    try {
      const { status, access, vnc_port: port, vnc_password: password } = await getStatus(this.id);
      this.access = isShared() ? { ...access, change: false, mind: false } : access;
      if (port && password && this.access.change) this.vnc = { port, password };
      if (!this.view) this.wasOver = hasEnded(status);
      return true;
    } catch (thrown) {
      const problem = asProblem(thrown);
      // A server that is away or in trouble may be back in a moment; these answers stay what they are.
      const final = ["job_not_found", "invalid_job_id", "unauthorized", "forbidden_host"].includes(problem.code);
      if (final || !this.view) this.problem = problem;
      if (final) this.#stream?.close();
      return !final;
    }
  }

  #closed = false;

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    this.#stream?.close();
  }

  #receive(data: string): void {
    const event = JSON.parse(data) as JobEvent;
    if (event.seq <= this.#received) return;
    if (event.seq !== this.#received + 1) throw new Error("an event is missing");
    this.#received = event.seq;
    this.#waiting.push(data);
    // A long history comes in thousands of events; each for itself would be drawn for itself. What comes
    // after a pause is shown at once.
    this.#timer ??= setTimeout(() => this.#draw(), this.#drawn + FRAME - performance.now());
  }

  #draw(): void {
    this.#timer = undefined;
    this.#drawn = performance.now();
    const waiting = this.#waiting;
    this.#waiting = [];
    for (const text of waiting) {
      const event = JSON.parse(text) as JobEvent;
      this.lines.push({ seq: event.seq, at: event.at, type: event.type, text });
      if (this.view) apply(this.view, event);
      else this.view = begin(event);
      if (event.type === "finished") {
        this.connection = "over";
        this.#stream?.close();
      }
    }
    this.lineCount = this.lines.length;
  }
}
