// What people read about the examples of the repository. A file of the folder that has no line here is
// not offered.

export interface ExampleWords {
  title: string;
  about: string;
  /** A task needs a model; steps need none. */
  kind: "steps" | "task";
}

export const WORDS: Record<string, ExampleWords> = {
  hello: { title: "Say hello", about: "Shell, Python, TypeScript and every file tool, once", kind: "steps" },
  "todo-app": { title: "Build a todo app", about: "Writes a small web app, checks its types, runs its tests", kind: "steps" },
  "fix-failing-test": { title: "Fix a failing test", about: "A model finds out why, and mends the code", kind: "task" },
  "react-todo-app": { title: "A todo app in React", about: "A model builds and tests it from nothing", kind: "task" },
};
