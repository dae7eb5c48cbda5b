// What people read about the examples of the repository. A file of the folder that has no line here is
// not offered.

export interface ExampleWords {
  title: string;
  about: string;
  /** A task needs a model; steps need none. */
  kind: "steps" | "task";
  /** The image without which it cannot run. */
  image?: string;
}

export const WORDS: Record<string, ExampleWords> = {
  hello: { title: "Say hello", about: "Shell, Python, TypeScript and every file tool, once", kind: "steps" },
  "todo-app": { title: "Build a todo app", about: "Writes a small web app, checks its types, runs its tests", kind: "steps" },
  plot: { title: "Draw a plot", about: "Python in a kernel that remembers; the figure is shown", kind: "steps" },
  typescript: { title: "TypeScript from npm", about: "Installs a package and uses it in a kernel", kind: "steps" },
  paint: { title: "Paint a picture", about: "Works on a desktop with pointer and keyboard", kind: "steps", image: "desktop" },
  "web-form": { title: "Fill in a web form", about: "Drives a browser on a desktop", kind: "steps", image: "desktop" },
  "fix-failing-test": { title: "Fix a failing test", about: "A model finds out why, and mends the code", kind: "task" },
  "react-todo-app": { title: "A todo app in React", about: "A model builds and tests it from nothing", kind: "task" },
};
