// Looks at a file of a workspace and decides what of it can be shown. What comes back is text, the
// bytes of a picture, or neither; nothing of it is ever a document.

import { readFile } from "../api/client";
import { type Notebook, readNotebook } from "./notebook";

export type Preview =
  | { kind: "text"; text: string; cut: boolean; bytes: number }
  | { kind: "image"; blob: Blob; bytes: number }
  | { kind: "notebook"; notebook: Notebook }
  | { kind: "binary"; bytes: number }
  | { kind: "empty" };

const MOST_TEXT = 512 * 1024;
const MOST_IMAGE = 16 * 1024 * 1024;
const MOST_NOTEBOOK = 16 * 1024 * 1024;

const IMAGES: Record<string, string> = {
  png: "image/png",
  jpg: "image/jpeg",
  jpeg: "image/jpeg",
  gif: "image/gif",
  webp: "image/webp",
};

export async function preview(job: string, path: string, signal: AbortSignal): Promise<Preview> {
  const response = await readFile(job, path, signal);
  const bytes = Number(response.headers.get("content-length") ?? 0);
  const type = IMAGES[path.slice(path.lastIndexOf(".") + 1).toLowerCase()];
  if (type && bytes <= MOST_IMAGE) {
    // The type is ours, whatever the bytes are: a browser draws a picture from them or nothing.
    return { kind: "image", blob: new Blob([await response.arrayBuffer()], { type }), bytes };
  }
  const isNotebook = path.endsWith(".ipynb") && bytes <= MOST_NOTEBOOK;
  const { data, cut } = await head(response, isNotebook ? MOST_NOTEBOOK : MOST_TEXT);
  if (data.length === 0) return { kind: "empty" };
  const text = decode(data, cut);
  if (isNotebook && text !== undefined && !cut) {
    const notebook = readNotebook(text);
    if (notebook) return { kind: "notebook", notebook };
    if (text.length > MOST_TEXT) return { kind: "text", text: text.slice(0, MOST_TEXT), cut: true, bytes };
  }
  return text === undefined ? { kind: "binary", bytes } : { kind: "text", text, cut, bytes };
}

/** Reads no more than is shown, however large the file is. */
async function head(response: Response, most: number): Promise<{ data: Uint8Array; cut: boolean }> {
  const reader = response.body?.getReader();
  const pieces: Uint8Array[] = [];
  let length = 0;
  while (reader) {
    const { done, value } = await reader.read();
    if (done) break;
    pieces.push(value);
    length += value.length;
    if (length > most) {
      await reader.cancel();
      break;
    }
  }
  const data = new Uint8Array(Math.min(length, most));
  let at = 0;
  for (const piece of pieces) {
    data.set(piece.subarray(0, Math.max(0, data.length - at)), at);
    at += piece.length;
    if (at >= data.length) break;
  }
  return { data, cut: length > most };
}

function decode(data: Uint8Array, cut: boolean): string | undefined {
  if (data.subarray(0, 8192).includes(0)) return undefined;
  try {
    // At a cut the last character may be broken; only there is that no sign of something else.
    return new TextDecoder("utf-8", { fatal: true }).decode(data, { stream: cut });
  } catch {
    return undefined;
  }
}
