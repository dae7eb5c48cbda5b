// A job as the page shows it, folded from its events: the same rules as the server's own view, and
// beside it the order in which things happened. Knows no browser and no Svelte.

import type {
  AnyCall,
  Approval,
  Changes,
  Connection,
  Decision,
  JobError,
  JobEvent,
  JobSpec,
  JobStatus,
  LivePlace,
  ModelAnswer,
  NetworkPolicy,
  PlanStep,
  RestoreCause,
  ResultSummary,
  SandboxReport,
  StepOutcome,
  StepStatus,
} from "../api/types";
import { keep, type Keeping } from "./kept";

export interface Step {
  n: number;
  call: AnyCall;
  status: StepStatus;
  startedAt: string;
  /** Pieces of output in the order in which they came, while it runs. */
  pieces: Piece[];
  outcome: StepOutcome | undefined;
  /** What it did to the workspace, once that is kept. */
  changes: Changes | undefined;
}

export interface Piece {
  stream: "stdout" | "stderr";
  text: string;
}

/** One thing on the timeline. */
export type Moment = { seq: number; at: string; void: boolean } & (
  | { kind: "scheduled" }
  | { kind: "claimed"; generation: number }
  | { kind: "ready"; report: SandboxReport }
  | { kind: "lost"; reason: string; kept: number | undefined }
  | { kind: "restored"; step: number; why: RestoreCause }
  | { kind: "unkept"; step: number; reason: string }
  | { kind: "step"; step: Step }
  | { kind: "refused"; connection: Connection; count: number }
  | { kind: "network"; network: NetworkPolicy; by: string }
  | { kind: "said"; answer: ModelAnswer }
  | { kind: "trouble"; model: string; error: JobError; again: boolean }
  | { kind: "mistake"; tool: string; output: string }
  | { kind: "plan" }
  | { kind: "question"; question: string }
  | { kind: "message"; by: string; text: string }
  | { kind: "asked"; approval: Approval; decision: Decision | undefined; by: string; words: string | undefined }
  | { kind: "used"; by: string; tool: string }
  | { kind: "recalled"; texts: string[] }
  | { kind: "kept"; texts: string[] }
  | { kind: "paused"; by: string }
  | { kind: "resumed"; by: string }
  | { kind: "nudged"; text: string }
  | { kind: "compacted"; before: number; after: number }
  | { kind: "summary"; isDone: boolean; summary: string }
  | { kind: "visit"; by: string; place: LivePlace }
  | { kind: "taken"; by: string }
  | { kind: "returned"; by: string }
  | { kind: "cancel"; by: string }
  | { kind: "stored"; result: ResultSummary }
  | { kind: "finished"; status: JobStatus; error: JobError | undefined }
  | { kind: "other"; type: string; fields: Record<string, unknown> }
);

/** All connections to one place with one verdict. */
export interface Destination {
  connection: Connection;
  count: number;
  firstAt: string;
  lastAt: string;
}

export interface JobView {
  id: string;
  status: JobStatus;
  spec: JobSpec;
  scheduledAt: string;
  startedAt: string | undefined;
  finishedAt: string | undefined;
  cancelRequested: boolean;
  network: NetworkPolicy;
  stepsTotal: number | undefined;
  stepsDone: number;
  failedSteps: number[];
  report: SandboxReport | undefined;
  result: ResultSummary | undefined;
  error: JobError | undefined;
  /** Decided how it ends; its sandbox is being taken down. */
  ending: boolean;
  lastSeq: number;
  moments: Moment[];
  destinations: Destination[];
  /** After which steps the files were kept, in the order in which that happened. */
  kept: Keeping[];
  /** What waits until somebody allows or refuses it, oldest first. */
  approvals: Approval[];
  /** Whether a person works with the desktop, and the job waits. */
  desktopTaken: boolean;
  /** What a model is going to do, and how far it is. */
  plan: PlanStep[];
  /** Who or what paused it last. */
  pausedBy?: string;
  /** What a model asked, as long as nobody has answered. */
  question: string | undefined;
  /** What a model has said of an answer that is not whole yet. */
  saying: string;
  /** What the model did so far comes to. */
  tokens: number;
  cost: number;
}

/** The view after the first event. */
export function begin(event: JobEvent): JobView | undefined {
  if (event.type !== "scheduled") return undefined;
  const spec = event.spec;
  return {
    id: event.job,
    status: "scheduled",
    spec,
    scheduledAt: event.at,
    startedAt: undefined,
    finishedAt: undefined,
    cancelRequested: false,
    network: spec.network,
    stepsTotal: "steps" in spec ? spec.steps.length : undefined,
    stepsDone: 0,
    failedSteps: [],
    report: undefined,
    result: undefined,
    error: undefined,
    ending: false,
    lastSeq: event.seq,
    moments: [{ kind: "scheduled", seq: event.seq, at: event.at, void: false }],
    destinations: [],
    kept: [],
    approvals: [],
    desktopTaken: false,
    plan: [],
    question: undefined,
    saying: "",
    tokens: 0,
    cost: 0,
  };
}

/** Takes in the next event. */
export function apply(view: JobView, event: JobEvent): void {
  view.lastSeq = event.seq;
  const base = { seq: event.seq, at: event.at, void: false };
  view.kept = keep(view.kept, event, () => lastStep(view));
  switch (event.type) {
    case "scheduled":
      return;
    case "released":
      // Whoever takes it up next says so.
      return;
    case "claimed":
      // A paused job stays paused in other hands too.
      if (view.status !== "paused") view.status = "running";
      view.saying = "";
      view.startedAt ??= event.at;
      view.moments.push({ ...base, kind: "claimed", generation: event.generation });
      return;
    case "sandbox.ready":
      view.report = event.report;
      view.moments.push({ ...base, kind: "ready", report: event.report });
      return;
    case "sandbox.lost":
      if (event.kept != null) {
        // What was done up to this step counts on, because its files are kept.
        const kept = event.kept;
        for (const moment of view.moments) if (moment.kind === "step" && moment.step.n > kept) moment.void = true;
        view.stepsDone = Math.min(view.stepsDone, kept);
        view.failedSteps = view.failedSteps.filter((n) => n <= kept);
        // A connection that waited for the user is gone; a call still waits.
        view.approvals = view.approvals.filter((approval) => !isForHost(approval));
        view.report = undefined;
        view.moments.push({ ...base, kind: "lost", reason: event.reason, kept });
        return;
      }
      // The next sandbox starts empty, so what was done in the old one is void.
      for (const moment of view.moments) if (["step", "said", "plan"].includes(moment.kind)) moment.void = true;
      view.stepsDone = 0;
      view.failedSteps = [];
      view.report = undefined;
      view.plan = [];
      view.approvals = [];
      view.desktopTaken = false;
      view.question = undefined;
      view.moments.push({ ...base, kind: "lost", reason: event.reason, kept: undefined });
      return;
    case "checkpoint.stored": {
      const step = findStep(view, event.step);
      if (step) step.changes = { added: event.added, changed: event.changed, deleted: event.deleted };
      return;
    }
    case "checkpoint.skipped":
      view.moments.push({ ...base, kind: "unkept", step: event.step, reason: event.reason });
      return;
    case "workspace.restored":
      view.moments.push({ ...base, kind: "restored", step: event.step, why: event.why });
      return;
    case "step.started":
      startStep(view, event.n, event.call as AnyCall, base);
      return;
    case "step.output": {
      const step = findStep(view, event.n);
      if (step) addPiece(step, event.stream, event.text);
      return;
    }
    case "step.finished":
      finishStep(view, event.n, event.outcome);
      return;
    case "network.connection":
      addConnection(view, event);
      return;
    case "network.changed":
      view.network = event.network;
      view.moments.push({ ...base, kind: "network", network: event.network, by: event.by });
      return;
    case "model.said":
      view.saying += event.text;
      return;
    case "model.answered":
      view.saying = "";
      addUsage(view, event.answer.usage, event.answer.cost_usd);
      view.moments.push({ ...base, kind: "said", answer: event.answer });
      return;
    case "model.failed":
      view.saying = "";
      view.moments.push({ ...base, kind: "trouble", model: event.model, error: event.error, again: event.retry_in_ms != null });
      return;
    case "tool.answered":
      // What such a call did has an event of its own; only what it could not do has not.
      if (event.failed) view.moments.push({ ...base, kind: "mistake", tool: event.tool, output: event.output });
      return;
    case "plan.updated":
      if (!view.moments.some((moment) => moment.kind === "plan" && !moment.void)) view.moments.push({ ...base, kind: "plan" });
      view.plan = event.steps;
      return;
    case "question.asked":
      view.question = event.question;
      view.moments.push({ ...base, kind: "question", question: event.question });
      return;
    case "message.received":
      view.question = undefined;
      view.moments.push({ ...base, kind: "message", by: event.by, text: event.text });
      return;
    case "approval.requested":
      view.approvals.push(event.approval);
      view.moments.push({ ...base, kind: "asked", approval: event.approval, decision: undefined, by: "", words: undefined });
      return;
    case "approval.decided": {
      view.approvals = view.approvals.filter((approval) => approval.id !== event.id);
      const asked = view.moments.findLast((moment) => moment.kind === "asked" && moment.approval.id === event.id);
      if (asked?.kind === "asked") {
        asked.decision = event.decision;
        asked.by = event.by;
        asked.words = event.words ?? undefined;
      }
      return;
    }
    case "tool.used":
      view.moments.push({ ...base, kind: "used", by: event.by, tool: (event.call as AnyCall).tool });
      return;
    case "memory.recalled":
      if (event.texts.length > 0) view.moments.push({ ...base, kind: "recalled", texts: event.texts });
      return;
    case "memory.kept":
      if (event.usage) addUsage(view, event.usage, event.cost_usd);
      if (event.texts.length > 0) view.moments.push({ ...base, kind: "kept", texts: event.texts });
      return;
    case "paused":
      if (view.status === "running") view.status = "paused";
      view.pausedBy = event.by;
      view.moments.push({ ...base, kind: "paused", by: event.by });
      return;
    case "resumed":
      if (view.status === "paused") view.status = "running";
      // Whoever lets it go on without a word has given one: the question is over, and the call is not made.
      view.question = undefined;
      view.approvals = view.approvals.filter(isForHost);
      view.moments.push({ ...base, kind: "resumed", by: event.by });
      return;
    case "model.nudged":
      view.moments.push({ ...base, kind: "nudged", text: event.text });
      return;
    case "context.compacted": {
      const { tokens_before: before, tokens_after: after, summary } = event.compaction;
      if (summary?.usage) addUsage(view, summary.usage, summary.cost_usd);
      view.moments.push({ ...base, kind: "compacted", before, after });
      return;
    }
    case "task.finished":
      view.moments.push({ ...base, kind: "summary", isDone: event.outcome === "done", summary: event.summary });
      return;
    case "live.opened":
      view.moments.push({ ...base, kind: "visit", by: event.by, place: event.place });
      return;
    case "desktop.taken":
      view.desktopTaken = true;
      view.moments.push({ ...base, kind: "taken", by: event.by });
      return;
    case "desktop.returned":
      view.desktopTaken = false;
      view.moments.push({ ...base, kind: "returned", by: event.by });
      return;
    case "cancel.requested":
      view.cancelRequested = true;
      view.moments.push({ ...base, kind: "cancel", by: event.by });
      return;
    case "result.stored":
      view.result = event.result;
      view.moments.push({ ...base, kind: "stored", result: event.result });
      return;
    case "concluded":
      view.ending = true;
      return;
    case "finished": {
      const { status, failed_steps, error } = event.end;
      view.status = status;
      view.finishedAt = event.at;
      view.failedSteps = failed_steps;
      view.error = error ?? undefined;
      view.ending = false;
      view.moments.push({ ...base, kind: "finished", status, error: view.error });
      return;
    }
    default:
      addUnknown(view, event, base);
  }
}

function addUsage(view: JobView, usage: { input?: number; output?: number }, cost: number | null | undefined): void {
  view.tokens += (usage.input ?? 0) + (usage.output ?? 0);
  view.cost += cost ?? 0;
}

type Base = { seq: number; at: string; void: boolean };

function startStep(view: JobView, n: number, call: AnyCall, base: Base): void {
  const step: Step = { n, call, status: "running", startedAt: base.at, pieces: [], outcome: undefined, changes: undefined };
  const moment: Moment = { ...base, kind: "step", step };
  // The same step is started again by a worker that took the job over: it stays in its place.
  const known = view.moments.findIndex(
    (other) => other.kind === "step" && !other.void && other.step.n === n,
  );
  if (known >= 0) view.moments[known] = moment;
  else view.moments.push(moment);
}

export function findStep(view: JobView, n: number): Step | undefined {
  for (let i = view.moments.length - 1; i >= 0; i -= 1) {
    const moment = view.moments[i];
    if (moment?.kind === "step" && !moment.void && moment.step.n === n) return moment.step;
  }
  return undefined;
}

function lastStep(view: JobView): number {
  const newest = view.moments.findLast((moment) => moment.kind === "step" && !moment.void);
  return newest?.kind === "step" ? newest.step.n : 0;
}

function addPiece(step: Step, stream: Piece["stream"], text: string): void {
  const last = step.pieces.at(-1);
  if (last?.stream === stream) last.text += text;
  else step.pieces.push({ stream, text });
}

function finishStep(view: JobView, n: number, outcome: StepOutcome): void {
  const step = findStep(view, n);
  if (step) {
    step.outcome = outcome;
    step.status = outcome.status;
  }
  view.stepsDone += 1;
  if (outcome.status !== "succeeded") view.failedSteps.push(n);
}

/** So many places are told apart; a hostile job could make up names without end. */
const MOST_DESTINATIONS = 2000;

function addConnection(
  view: JobView,
  event: Extract<JobEvent, { type: "network.connection" }>,
): void {
  const { host, port, verdict, bytes_in, bytes_out, count, seq, at } = event;
  const known = view.destinations.find(
    ({ connection }) =>
      connection.host === host && connection.port === port && connection.verdict === verdict,
  );
  if (known) {
    known.count += count;
    known.lastAt = at;
    known.connection.bytes_in += bytes_in;
    known.connection.bytes_out += bytes_out;
    return;
  }
  if (view.destinations.length >= MOST_DESTINATIONS) return;
  const connection = { host, port, verdict, bytes_in, bytes_out };
  view.destinations.push({ connection, count, firstAt: at, lastAt: at });
  // What was let through is in the network pane; the first refusal of a place belongs to the story.
  if (verdict !== "allowed") {
    view.moments.push({ kind: "refused", seq, at, void: false, connection, count });
  }
}

/** A newer server tells of things that this page has no picture for: they are shown as they are. */
function addUnknown(view: JobView, event: JobEvent, base: Base): void {
  const { seq: _seq, at: _at, job: _job, prev: _prev, hash: _hash, ...rest } = event as unknown as Record<string, unknown>;
  const { type: name, ...fields } = rest;
  const type = String(name);
  view.moments.push({ ...base, kind: "other", type, fields });
}

/** What a job is called: its name, its task, or the first thing that it does. */
export function titleOf(spec: JobSpec): string {
  if (spec.name) return spec.name;
  if ("task" in spec) return spec.task;
  if (!("steps" in spec)) return "A session";
  const first = (spec.steps as AnyCall[])[0];
  if (!first) return "A job without steps";
  const words = first["command"] ?? first["code"] ?? first["path"];
  return typeof words === "string" ? words : first.tool;
}

function isForHost(approval: Approval): boolean {
  return "host" in approval;
}
