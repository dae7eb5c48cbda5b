// The fields of each tool that a step can be written with by hand. A tool that is not listed here is
// written as JSON, so that a server with more tools needs no new page.

import type { AnyCall } from "../api/types";

export interface Field {
  name: string;
  label: string;
  shape: "line" | "text" | "code";
  optional?: boolean;
  placeholder?: string;
  language?: string;
}

export const FIELDS: Record<string, Field[]> = {
  shell: [
    { name: "command", label: "Command", shape: "code", placeholder: "ls -la", language: "bash" },
  ],
  python: [
    { name: "code", label: "Python code", shape: "code", placeholder: "print(6 * 7)", language: "python" },
  ],
  typescript: [
    {
      name: "code",
      label: "TypeScript code",
      shape: "code",
      placeholder: "console.log(6 * 7);",
      language: "typescript",
    },
  ],
  write_file: [
    { name: "path", label: "Path", shape: "line", placeholder: "notes.md" },
    { name: "content", label: "Content", shape: "code" },
  ],
  read_file: [{ name: "path", label: "Path", shape: "line", placeholder: "notes.md" }],
  edit_file: [
    { name: "path", label: "Path", shape: "line", placeholder: "notes.md" },
    { name: "old", label: "Text to replace", shape: "code" },
    { name: "new", label: "New text", shape: "code" },
  ],
  move_file: [
    { name: "from", label: "From", shape: "line" },
    { name: "to", label: "To", shape: "line" },
  ],
  copy_file: [
    { name: "from", label: "From", shape: "line" },
    { name: "to", label: "To", shape: "line" },
  ],
  diff_files: [
    { name: "from", label: "From", shape: "line" },
    { name: "to", label: "To", shape: "line" },
  ],
  find_files: [{ name: "glob", label: "Files like", shape: "line", placeholder: "**/*.ts" }],
  xdot: [{ name: "command", label: "xdotool command", shape: "code", placeholder: "mousemove 10 10 click 1" }],
  delete_file: [{ name: "path", label: "Path", shape: "line" }],
  list_files: [
    { name: "path", label: "Folder", shape: "line", optional: true, placeholder: "the whole workspace" },
  ],
  search_files: [
    { name: "pattern", label: "Regular expression", shape: "line", placeholder: "(?i)hello" },
    { name: "glob", label: "Only files like", shape: "line", optional: true, placeholder: "**/*.ts" },
  ],
};

/** What a new step of a tool starts with. */
export function emptyCall(tool: string): AnyCall {
  const fields = (FIELDS[tool] ?? []).filter((field) => !field.optional);
  return { tool, ...Object.fromEntries(fields.map((field) => [field.name, ""])) };
}

/** Whether nothing was written into a step yet. One of a tool that needs nothing is never blank. */
export function isBlank(call: AnyCall): boolean {
  const fields = Object.entries(call).filter(([key]) => key !== "tool");
  return fields.length > 0 && fields.every(([, value]) => value === "");
}

/** The calls as they are sent: a field that was left empty was not meant, where the tool can do without it. */
export function written(calls: AnyCall[]): AnyCall[] {
  const optional = ["path", "glob"];
  return calls.map((call) => {
    const mayLack = call.tool === "list_files" || call.tool === "search_files";
    const meant = Object.entries(call).filter(([key, value]) => !(mayLack && optional.includes(key) && value === ""));
    return Object.fromEntries(meant) as AnyCall;
  });
}
