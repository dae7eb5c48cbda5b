// The examples of the repository, each loaded when it is chosen.

import type { Read } from "./playbook";
import { readPlaybook } from "./playbook";

const FILES = import.meta.glob<string>("../../../examples/*.json", { query: "?raw", import: "default" });

export interface Example {
  name: string;
  title: string;
  about: string;
  load(): Promise<Read>;
}

/** What people read about those that they are likely to meet first; any other goes by its name. */
const WORDS: Record<string, [title: string, about: string]> = {
  hello: ["Say hello", "Shell, Python, TypeScript and every file tool, once"],
  "todo-app": ["A todo app", "Writes a small web app, checks its types, runs its tests"],
};

export const examples: Example[] = Object.entries(FILES)
  .map(([file, load]) => {
    const name = file.slice(file.lastIndexOf("/") + 1, -".json".length);
    const [title, about] = WORDS[name] ?? [name.replaceAll("-", " "), "An example of this repository"];
    return { name, title, about, load: async () => readPlaybook(await load()) };
  })
  .sort((a, b) => order(a.name) - order(b.name));

function order(name: string): number {
  const place = Object.keys(WORDS).indexOf(name);
  return place < 0 ? Object.keys(WORDS).length : place;
}
