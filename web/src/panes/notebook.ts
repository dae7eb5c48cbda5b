// Reads a notebook file into what can be shown of it: text and pictures. Whatever else a cell gave
// (markup, scripts) stays in the file. Nothing here trusts the file: a sandbox wrote it.

export interface Cell {
  kind: "code" | "text";
  source: string;
  /** The number that the kernel gave it. */
  count: number | undefined;
  outputs: Shown[];
}

export type Shown =
  | { kind: "text"; text: string; stream: "stdout" | "stderr" }
  | { kind: "picture"; type: string; data: Uint8Array<ArrayBuffer> };

export interface Notebook {
  language: string;
  cells: Cell[];
  /** Cells that there were too many to show. */
  left: number;
}

const MOST_CELLS = 500;
const MOST_OUTPUTS = 50;
const MOST_TEXT = 100_000;
/** Drawn with these types and no others; an SVG is a document, so it is none of them. */
const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

/** Nothing if this is no notebook. */
export function readNotebook(text: string): Notebook | undefined {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    return undefined;
  }
  const cells = field(file, "cells");
  if (!Array.isArray(cells)) return undefined;
  const info = field(field(file, "metadata"), "language_info");
  return {
    language: words(field(info, "name")).slice(0, 30) || "python",
    cells: cells.slice(0, MOST_CELLS).map(readCell),
    left: Math.max(0, cells.length - MOST_CELLS),
  };
}

function readCell(cell: unknown): Cell {
  const outputs = field(cell, "outputs");
  const count = field(cell, "execution_count");
  return {
    kind: field(cell, "cell_type") === "code" ? "code" : "text",
    source: cut(words(field(cell, "source"))),
    count: typeof count === "number" ? count : undefined,
    outputs: (Array.isArray(outputs) ? outputs.slice(0, MOST_OUTPUTS) : []).flatMap(readOutput),
  };
}

function readOutput(output: unknown): Shown[] {
  switch (field(output, "output_type")) {
    case "stream": {
      const stream = field(output, "name") === "stderr" ? "stderr" : "stdout";
      return [{ kind: "text", text: cut(words(field(output, "text"))), stream }];
    }
    case "error": {
      const trace = words(field(output, "traceback"), "\n");
      const text = trace || `${words(field(output, "ename"))}: ${words(field(output, "evalue"))}`;
      return [{ kind: "text", text: cut(text), stream: "stderr" }];
    }
    case "execute_result":
    case "display_data": {
      const data = field(output, "data");
      for (const type of PICTURES) {
        const picture = bytesOf(words(field(data, type)));
        if (picture) return [{ kind: "picture", type, data: picture }];
      }
      const text = words(field(data, "text/plain"));
      return text ? [{ kind: "text", text: cut(text), stream: "stdout" }] : [];
    }
    default:
      return [];
  }
}

function field(value: unknown, name: string): unknown {
  return typeof value === "object" && value !== null && Object.hasOwn(value, name) ? (value as Record<string, unknown>)[name] : undefined;
}

/** A notebook writes texts as one or as a list of lines. */
function words(value: unknown, between = ""): string {
  if (typeof value === "string") return value;
  return Array.isArray(value) ? value.filter((part) => typeof part === "string").join(between) : "";
}

function cut(text: string): string {
  return text.length > MOST_TEXT ? `${text.slice(0, MOST_TEXT)}\n[the rest is in the file]` : text;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> | undefined {
  if (!base64) return undefined;
  try {
    return Uint8Array.from(atob(base64.replace(/\s/g, "")), (character) => character.charCodeAt(0));
  } catch {
    return undefined;
  }
}
