// Asks the worker to colour a text. A text that is too long, or takes too long, stays plain.

import address from "./worker?worker&url";
import type { Span } from "./worker";

export type { Span };

const LONGEST = 200_000;
const PATIENCE = 2000;

let worker: Worker | undefined;
let next = 0;
const waiting = new Map<number, (spans: Span[] | undefined) => void>();

export function highlight(language: string, text: string): Promise<Span[] | undefined> {
  if (text.length > LONGEST || text === "") return Promise.resolve(undefined);
  worker ??= start();
  const id = (next += 1);
  return new Promise((resolve) => {
    const timer = setTimeout(giveUp, PATIENCE);
    waiting.set(id, (spans) => {
      clearTimeout(timer);
      resolve(spans);
    });
    worker?.postMessage({ id, language, text });
  });
}

/** Whatever keeps the worker busy ends with it, and all that wait behind it stay plain. */
function giveUp(): void {
  worker?.terminate();
  worker = undefined;
  const all = [...waiting.values()];
  waiting.clear();
  for (const answer of all) answer(undefined);
}

function start(): Worker {
  const started = new Worker(trusted(address) as string, { type: "module" });
  started.onmessage = ({ data }: MessageEvent<{ id: number; spans: Span[] }>) => {
    waiting.get(data.id)?.(data.spans);
    waiting.delete(data.id);
  };
  started.onerror = giveUp;
  return started;
}

interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { createScriptURL(address: string): string },
  ): { createScriptURL(address: string): unknown };
}

/** The page's policy lets no text become the address of a script, but for this one. */
function trusted(script: string): unknown {
  const types = (globalThis as { trustedTypes?: TrustedTypes }).trustedTypes;
  if (!types) return script;
  const rules = { createScriptURL: () => script };
  policy ??= types.createPolicy("bellglass-worker", rules);
  return policy.createScriptURL(script);
}

let policy: ReturnType<TrustedTypes["createPolicy"]> | undefined;
