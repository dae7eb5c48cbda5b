// What a person drops or pastes, read as a job: a playbook like those in examples/, a bare list of
// steps, or steps one to a line. Pure: text in, job or reason out.

import type { AnyCall } from "../api/types";

/** The parts of a request that the task box shows; all others are kept as they came. */
export interface Draft {
  mode: "task" | "steps";
  task: string;
  steps: AnyCall[];
  /** Everything else of the request, by the API's names. */
  rest: Record<string, unknown>;
}

export type Read = { draft: Draft } | { fault: string };

export function readPlaybook(text: string): Read {
  const whole = parse(text);
  const value = whole ?? parseLines(text);
  if (value === undefined) return { fault: "This is not JSON." };
  if (Array.isArray(value)) return withSteps(value, {});
  if (typeof value !== "object" || value === null) return { fault: "A playbook is a JSON object." };
  const { steps, task, prompt, ...rest } = value as Record<string, unknown>;
  if (steps !== undefined) return withSteps(steps, rest);
  const words = task ?? prompt;
  if (typeof words === "string") return { draft: { mode: "task", task: words, steps: [], rest } };
  if (typeof rest["tool"] === "string") return withSteps([value], {});
  return { fault: "A playbook has `steps` or a `task`; this has neither." };
}

function withSteps(steps: unknown, rest: Record<string, unknown>): Read {
  if (!Array.isArray(steps)) return { fault: "`steps` is not a list." };
  const bad = steps.findIndex(
    (step) => typeof step !== "object" || step === null || typeof step.tool !== "string",
  );
  if (bad >= 0) return { fault: `Step ${bad + 1} has no \`tool\`.` };
  return { draft: { mode: "steps", task: "", steps: steps as AnyCall[], rest } };
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

function parseLines(text: string): unknown[] | undefined {
  const lines = text.split("\n").filter((line) => line.trim() !== "");
  const values = lines.map(parse);
  return values.length > 0 && values.every((value) => value !== undefined) ? values : undefined;
}

/** Whether a pasted text is meant as a playbook and not as words of a task or code of a step. */
export function looksLikePlaybook(text: string): boolean {
  return /^\s*[[{]/.test(text) && "draft" in readPlaybook(text);
}
