// The examples of the repository, each loaded when it is chosen.

import { type ExampleWords, WORDS } from "./example_words";
import type { Read } from "./playbook";
import { readPlaybook } from "./playbook";

const FILES = import.meta.glob<string>("../../../examples/*.json", { query: "?raw", import: "default" });

export interface Example extends ExampleWords {
  name: string;
  load(): Promise<Read>;
}

export const examples: Example[] = Object.entries(WORDS).flatMap(([name, words]) => {
  const load = FILES[`../../../examples/${name}.json`];
  return load ? [{ name, ...words, load: async () => readPlaybook(await load()) }] : [];
});
