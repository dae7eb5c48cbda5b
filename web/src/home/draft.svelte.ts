// The job that is being written. Lives outside of the page that shows it, so that it is still there
// when somebody comes back, and so that "run again" can fill it.

import type { AnyCall, JobRequest, JobSpec, Limits } from "../api/types";
import type { Draft } from "./playbook";
import { emptyCall, isBlank, written } from "./tools";

export interface Attached {
  path: string;
  content: string;
  bytes: number;
}

/** Fields that only a task can have. */
const OF_TASKS = ["mcp", "approve", "project"];

export class DraftJob {
  mode = $state<"task" | "steps">("steps");
  task = $state("");
  steps = $state<AnyCall[]>([emptyCall("shell")]);
  name = $state("");
  model = $state("");
  image = $state("");
  /** The size of the desktop that runs from the beginning on, as `1280x800`; empty for none. */
  desktop = $state("");
  network = $state<"" | "none" | "registries" | "open" | "allow">("");
  hosts = $state("");
  onError = $state<"continue" | "stop">("continue");
  isolation = $state("");
  limits = $state<Record<"memory" | "disk" | "cpus" | "time", string>>(noLimits());
  /** Whether a task's plan is shown for approval before anything is done. */
  plan = $state<"" | "review">("");
  budget = $state<Record<"usd" | "tokens" | "steps", string>>(noBudget());
  files = $state<Attached[]>([]);
  /** Fields that came with a playbook and have no place on the page. */
  others = $state.raw<Record<string, unknown>>({});

  fill(draft: Draft): void {
    const { name, image, desktop, network, on_error, isolation, limits, model, files, plan, budget, ...others } = draft.rest;
    this.mode = draft.mode;
    this.task = draft.task;
    this.steps = draft.steps.length > 0 ? structuredClone(draft.steps) : [emptyCall("shell")];
    this.name = text(name);
    this.image = text(image);
    this.desktop = screenText(desktop);
    this.model = text(model);
    this.isolation = text(isolation);
    this.onError = on_error === "stop" ? "stop" : "continue";
    const allowed = (network as { allow?: unknown } | undefined)?.allow;
    this.network = Array.isArray(allowed) ? "allow" : (text(network) as typeof this.network);
    this.hosts = Array.isArray(allowed) ? allowed.join("\n") : "";
    this.plan = plan === "review" ? "review" : "";
    this.budget = noBudget();
    const otherBudget: Record<string, unknown> = {};
    for (const [key, value] of Object.entries((budget ?? {}) as Record<string, unknown>)) {
      if (key in this.budget) this.budget[key as keyof typeof this.budget] = String(value);
      else otherBudget[key] = value;
    }
    this.limits = noLimits();
    const otherLimits: Record<string, unknown> = {};
    for (const [key, value] of Object.entries((limits ?? {}) as Record<string, unknown>)) {
      if (key in this.limits) this.limits[key as keyof typeof this.limits] = String(value);
      else otherLimits[key] = value;
    }
    this.files = [];
    this.others = {
      ...others,
      ...(files ? { files } : {}),
      ...(Object.keys(otherLimits).length > 0 ? { limits: otherLimits } : {}),
      ...(Object.keys(otherBudget).length > 0 ? { budget: otherBudget } : {}),
    };
  }

  /**
   * The same job once more, to be changed or sent as it is. Of its limits those are said that are not the usual
   * ones, where these are known. How large a disk is usual depends on the memory, so both are said or none.
   */
  fillFrom(spec: JobSpec, usual?: Limits): void {
    // Whose job it is, and what it goes on from, is no part of a request.
    const { task, steps, limits, owner: _owner, fork: _fork, session: _session, ...others } = spec as JobSpec &
      { task?: string; steps?: AnyCall[]; session?: unknown };
    const rest = Object.fromEntries(Object.entries(others).filter(([, value]) => value != null));
    const isUsual = (key: string) => limits[key as keyof Limits] === usual?.[key as keyof Limits];
    const chosen = Object.entries(limits).filter(([key]) => !isUsual(key) || (key === "disk" && !isUsual("memory")));
    this.fill({
      mode: steps ? "steps" : "task",
      task: task ?? "",
      steps: steps ?? [],
      rest: { ...rest, limits: Object.fromEntries(chosen) },
    });
  }

  clear(): void {
    this.fill({ mode: this.mode, task: "", steps: [], rest: {} });
  }

  get isEmpty(): boolean {
    if (this.mode === "task") return this.task.trim() === "";
    return this.steps.every((step) => isBlank(step));
  }

  /** The body of the request. */
  request(): JobRequest {
    const limits = given(this.limits);
    const isTask = this.mode === "task";
    const otherFiles = (this.others["files"] as unknown[] | undefined) ?? [];
    const own = this.files.map(({ path, content }) => ({ path, content, encoding: "base64" }));
    const files = [...otherFiles, ...own];
    const hosts = this.hosts.split(/[\s,]+/).filter(Boolean);
    const others = Object.entries(this.others).filter(([key]) => isTask || !OF_TASKS.includes(key));
    const all: Record<string, unknown> = {
      ...Object.fromEntries(others),
      ...(isTask ? { task: this.task, model: this.model || undefined, plan: this.plan || undefined } : { steps: written($state.snapshot(this.steps)) }),
      budget: isTask ? { ...(this.others["budget"] as object | undefined), ...given(this.budget) } : undefined,
      name: this.name || undefined,
      image: this.image || undefined,
      desktop: screenOf(this.desktop),
      isolation: this.isolation || undefined,
      on_error: this.mode === "steps" && this.onError === "stop" ? "stop" : undefined,
      network: this.network === "allow" ? { allow: hosts } : this.network || undefined,
      limits: { ...(this.others["limits"] as object | undefined), ...limits },
      files,
    };
    const isSaid = (value: unknown) =>
      value !== undefined && !(typeof value === "object" && Object.keys(value as object).length === 0);
    return Object.fromEntries(Object.entries(all).filter(([, value]) => isSaid(value))) as JobRequest;
  }
}

function noLimits() {
  return { memory: "", disk: "", cpus: "", time: "" };
}

function noBudget() {
  return { usd: "", tokens: "", steps: "" };
}

/** What a desktop has that nobody gave a size to. */
export const USUAL_SCREEN = "1280x800";

function screenText(desktop: unknown): string {
  if (desktop === true) return USUAL_SCREEN;
  const { width, height } = (desktop ?? {}) as { width?: unknown; height?: unknown };
  return typeof width === "number" && typeof height === "number" ? `${width}x${height}` : "";
}

function screenOf(text: string): { width: number; height: number } | undefined {
  const [width, height] = text.split("x").map(Number);
  return width && height ? { width, height } : undefined;
}

/** The fields that something was written into. */
function given(fields: Record<string, string>): Record<string, number | string> {
  const written = Object.entries(fields).filter(([, value]) => value.trim() !== "");
  return Object.fromEntries(written.map(([key, value]) => [key, numeric(value)]));
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** A bare number is one; everything else ("512MiB", "10m") is for the server to read. */
function numeric(value: string): number | string {
  const trimmed = value.trim();
  return /^\d+(\.\d+)?$/.test(trimmed) ? Number(trimmed) : trimmed;
}

export const draft = new DraftJob();
