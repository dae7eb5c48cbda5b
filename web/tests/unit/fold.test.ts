// A job's view as events make it.

import { expect, test } from "@playwright/test";
import type { JobEvent } from "../../src/api/types";
import { contextOf } from "../../src/panes/context";
import { apply, begin, findStep, type JobView, titleOf } from "../../src/job/fold";

const AT = "2026-11-16T04:00:00Z";

function fold(...bodies: Record<string, unknown>[]): JobView {
  const spec = { steps: [{ tool: "shell", command: "ls" }, { tool: "shell", command: "pwd" }], network: "none" };
  const events = [{ type: "scheduled", spec }, ...bodies].map(
    (body, i) => ({ seq: i + 1, at: AT, job: "j", ...body }) as unknown as JobEvent,
  );
  const view = begin(events[0]!);
  if (!view) throw new Error("the first event begins a job");
  for (const event of events.slice(1)) apply(view, event);
  return view;
}

const started = (n: number) => ({ type: "step.started", n, call: { tool: "shell", command: "ls" } });
const said = (n: number, text: string, stream = "stdout") => ({ type: "step.output", n, stream, text });
const finished = (n: number, status = "succeeded") => ({ type: "step.finished", n, outcome: { status, stdout: "", stderr: "" } });
const kinds = (view: JobView) => view.moments.map((moment) => moment.kind);

test("steps are counted, and their output is kept in its order", () => {
  const view = fold(
    { type: "claimed", generation: 1 },
    started(1), said(1, "a"), said(1, "b"), said(1, "!", "stderr"), said(1, "c"), finished(1),
    started(2), finished(2, "failed"),
  );
  expect(view).toMatchObject({ status: "running", stepsDone: 2, stepsTotal: 2, failedSteps: [2] });
  expect(findStep(view, 1)?.pieces).toEqual([
    { stream: "stdout", text: "ab" }, { stream: "stderr", text: "!" }, { stream: "stdout", text: "c" },
  ]);
});

test("a step that is started again by another worker takes its own place and no second one", () => {
  const view = fold({ type: "claimed", generation: 1 }, started(1), said(1, "half"), { type: "claimed", generation: 2 }, started(1), finished(1));
  expect(kinds(view)).toEqual(["scheduled", "claimed", "step", "claimed"]);
  expect(findStep(view, 1)).toMatchObject({ status: "succeeded", pieces: [] });
  expect(view.stepsDone).toBe(1);
});

test("what was done in a lost sandbox is void but still seen", () => {
  const view = fold(started(1), finished(1, "failed"), { type: "sandbox.lost", reason: "gone" }, started(1), finished(1));
  expect(view).toMatchObject({ stepsDone: 1, failedSteps: [] });
  expect(view.moments.filter((moment) => moment.kind === "step").map((moment) => moment.void)).toEqual([true, false]);
});

test("what is kept of a lost sandbox counts on", () => {
  const stored = { type: "checkpoint.stored", step: 1, checkpoint: 1, added: 2, changed: 0, deleted: 0, bytes: 9, took_us: 1 };
  const view = fold(
    started(1), finished(1), stored, started(2), finished(2, "interrupted"), started(3),
    { type: "sandbox.lost", reason: "gone", kept: 2 }, { type: "workspace.restored", step: 1, why: "sandbox_lost", entries: 2 },
  );
  expect(view).toMatchObject({ stepsDone: 2, failedSteps: [2] });
  expect(view.moments.filter((moment) => moment.kind === "step").map((moment) => moment.void)).toEqual([false, false, true]);
  expect(findStep(view, 1)?.changes).toEqual({ added: 2, changed: 0, deleted: 0 });
  expect(kinds(view).slice(-2)).toEqual(["lost", "restored"]);
});

test("connections are added up by place and verdict; only a first refusal is part of the story", () => {
  const to = (host: string, verdict: string) => ({ type: "network.connection", host, port: 443, verdict, bytes_in: 5, bytes_out: 2, count: 3 });
  const view = fold(to("a", "allowed"), to("a", "allowed"), to("b", "refused_by_policy"), to("b", "refused_by_policy"));
  expect(view.destinations.map(({ connection, count }) => [connection.host, count, connection.bytes_in])).toEqual([["a", 6, 10], ["b", 6, 10]]);
  expect(kinds(view)).toEqual(["scheduled", "refused"]);
});

test("names without end do not fill the page", () => {
  const many = Array.from({ length: 2500 }, (_, i) => ({
    type: "network.connection", host: `h${i}`, port: 1, verdict: "allowed", bytes_in: 0, bytes_out: 0, count: 1,
  }));
  expect(fold(...many).destinations.length).toBe(2000);
});

test("the end says how it was", () => {
  const view = fold({ type: "concluded", end: {} }, { type: "finished", end: { status: "failed", failed_steps: [1], error: { code: "time_limit", message: "too long" } } });
  expect(view).toMatchObject({ status: "failed", failedSteps: [1], ending: false, error: { code: "time_limit" } });
});

test("a model's words, plan, questions and costs are kept as they stand", () => {
  const answer = { model: "m", blocks: [{ type: "text", text: "I begin." }], stop: "finished", usage: { input: 100, output: 5 }, cost_usd: 0.25, duration_ms: 1 };
  const plan = (status: string) => ({ type: "plan.updated", steps: [{ title: "look", status }] });
  const view = fold(
    { type: "claimed", generation: 1 },
    { type: "model.answered", answer }, plan("pending"), plan("done"),
    { type: "question.asked", call_id: "c", question: "Which?" }, { type: "paused", by: "api" }, { type: "claimed", generation: 2 },
  );
  expect(view).toMatchObject({ status: "paused", tokens: 105, cost: 0.25, question: "Which?", plan: [{ title: "look", status: "done" }] });
  expect(kinds(view)).toEqual(["scheduled", "claimed", "said", "plan", "question", "paused", "claimed"]);
  apply(view, { seq: 99, at: AT, job: "j", type: "message.received", by: "api", text: "That." } as JobEvent);
  expect(view.question).toBeUndefined();
});

test("what waits for somebody's word waits until they say it", () => {
  const asked = (id: string) => ({ type: "approval.requested", approval: { id, tool: { name: "shell", arguments: "{}" } } });
  const view = fold({ type: "claimed", generation: 1 }, asked("a"), asked("b"), { type: "approval.decided", id: "a", decision: "refuse", by: "ada", words: "no" });
  expect(view.approvals.map(({ id }) => id)).toEqual(["b"]);
  expect(view.moments[2]).toMatchObject({ kind: "asked", decision: "refuse", by: "ada", words: "no" });
  expect(view.moments[3]).toMatchObject({ kind: "asked", decision: undefined });
  apply(view, { seq: 99, at: AT, job: "j", type: "sandbox.lost", reason: "gone" } as JobEvent);
  expect(view.approvals).toEqual([]);
});

test("who lets a job go on without a word ends what it waited for", () => {
  const tool = { id: "a", tool: { name: "shell", arguments: "{}" } };
  const host = { id: "b", host: "example.com:443" };
  const view = fold(
    { type: "claimed", generation: 1 },
    { type: "question.asked", call_id: "q", question: "Red?" },
    { type: "approval.requested", approval: tool }, { type: "approval.requested", approval: host },
    { type: "paused", by: "approval" }, { type: "resumed", by: "ada" },
  );
  expect(view).toMatchObject({ status: "running", question: undefined, approvals: [host] });
  apply(view, { seq: 9, at: AT, job: "j", type: "sandbox.lost", reason: "gone", kept: 0 } as unknown as JobEvent);
  expect(view.approvals).toEqual([]);
});

test("a model's words are put together as they come", () => {
  const view = fold({ type: "claimed", generation: 1 }, { type: "model.said", text: "I am " }, { type: "model.said", text: "thinking" });
  expect(view.saying).toBe("I am thinking");
  apply(view, { seq: 5, at: AT, job: "j", type: "claimed", generation: 2 } as unknown as JobEvent);
  expect(view.saying).toBe("");
});

test("a conversation is read whatever is in it", () => {
  const call = { type: "tool_call", id: "c", name: "shell", arguments: "{}" };
  const context = contextOf({
    tokens: 7,
    messages: [
      { entry: 1, role: "user", text: "Do it." },
      { entry: 4, role: "assistant", blocks: [{ type: "text", text: "Yes." }, call, { type: "reasoning", data: {} }], results: [{ text: "ok", failed: false, shown: "whole" }] },
      7,
    ],
  });
  expect(context.messages.map(({ parts }) => parts.map(({ kind }) => kind))).toEqual([["text"], ["text", "call", "other", "result"], []]);
  expect(contextOf(null)).toEqual({ tokens: 0, messages: [] });
});

test("an event of a newer server is shown as it is", () => {
  const view = fold({ type: "moon.rose", text: "hm", prev: "x", hash: "y" });
  expect(view.moments[1]).toMatchObject({ kind: "other", type: "moon.rose", fields: { text: "hm" } });
});

test("a job without a name is called by what it does first", () => {
  expect(titleOf({ steps: [{ tool: "shell", command: "ls -l" }] } as never)).toBe("ls -l");
  expect(titleOf({ task: "Build it", name: null } as never)).toBe("Build it");
  expect(titleOf({ steps: [{ tool: "list_files" }], name: "n" } as never)).toBe("n");
});

test("who opened what is told, and whether a person has the desktop", () => {
  const view = fold({ type: "live.opened", by: "user", place: { port: 8123 } }, { type: "desktop.taken", by: "user" });
  expect(view.desktopTaken).toBe(true);
  expect(kinds(view).slice(-2)).toEqual(["visit", "taken"]);
  expect(fold({ type: "desktop.taken", by: "user" }, { type: "desktop.returned", by: "user" }).desktopTaken).toBe(false);
  expect(fold({ type: "desktop.taken", by: "user" }, { type: "sandbox.lost", reason: "gone" }).desktopTaken).toBe(false);
});
