// What went wrong, in words for people: the API's problem documents, and a server that is not there.

import type { ProblemDocument } from "./types";

export class Problem extends Error {
  readonly code: string;
  readonly title: string;
  readonly hint: string | undefined;
  /** Where in the request's body the fault is, such as `steps[2].command`. */
  readonly pointer: string | undefined;

  constructor(of: { code: string; title: string; detail: string; hint?: string; pointer?: string }) {
    super(of.detail);
    this.code = of.code;
    this.title = of.title;
    this.hint = of.hint;
    this.pointer = of.pointer;
  }
}

export const UNREACHABLE = "unreachable";

export function unreachable(): Problem {
  return new Problem({
    code: UNREACHABLE,
    title: "The server does not answer",
    detail: "It may be starting again, or the connection to it is gone.",
    hint: "This page goes on by itself as soon as the server is back.",
  });
}

/** Reads what an answer that was not a success says about itself. */
export function problemOf(status: number, body: unknown): Problem {
  if (isProblem(body)) return new Problem(body);
  return new Problem({
    code: "unexpected_answer",
    title: "An answer that makes no sense",
    detail: `The server answered with status ${status} and no explanation.`,
  });
}

/** Anything that was thrown, as something that can be shown. */
export function asProblem(thrown: unknown): Problem {
  if (thrown instanceof Problem) return thrown;
  // A fetch that gets no answer at all ends with this.
  if (thrown instanceof TypeError) return unreachable();
  return new Problem({
    code: "page_failed",
    title: "Something went wrong on this page",
    detail: thrown instanceof Error ? thrown.message : String(thrown),
  });
}

function isProblem(body: unknown): body is ProblemDocument {
  const fields = body as Record<string, unknown> | null;
  return (
    typeof fields === "object" &&
    fields !== null &&
    typeof fields["code"] === "string" &&
    typeof fields["detail"] === "string"
  );
}
