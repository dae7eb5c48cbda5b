// Which grammar a file or a tool's text is coloured with.

export function languageOfPath(path: string): string | undefined {
  const name = path.slice(path.lastIndexOf("/") + 1).toLowerCase();
  if (name === "dockerfile" || name === "makefile") return "bash";
  const dot = name.lastIndexOf(".");
  return dot < 0 ? undefined : BY_ENDING[name.slice(dot + 1)];
}

const BY_ENDING: Record<string, string> = {
  sh: "bash",
  bash: "bash",
  c: "cpp",
  h: "cpp",
  cc: "cpp",
  cpp: "cpp",
  hpp: "cpp",
  css: "css",
  diff: "diff",
  patch: "diff",
  go: "go",
  htm: "xml",
  html: "xml",
  svg: "xml",
  xml: "xml",
  svelte: "xml",
  vue: "xml",
  java: "java",
  js: "typescript",
  jsx: "typescript",
  mjs: "typescript",
  cjs: "typescript",
  ts: "typescript",
  tsx: "typescript",
  json: "json",
  jsonl: "json",
  ipynb: "json",
  md: "markdown",
  py: "python",
  rs: "rust",
  sql: "sql",
  toml: "ini",
  ini: "ini",
  cfg: "ini",
  yaml: "yaml",
  yml: "yaml",
};
