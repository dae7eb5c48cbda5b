// A file from this machine that is to lie in the workspace when the job starts. It travels inside the
// request, so it must be small; larger ones are uploaded while the job runs.

import { bytes } from "../format";
import { draft } from "./draft.svelte";

const LARGEST = 8 * 1024 * 1024;

/** Takes the file along, or says why not. */
export async function attach(file: File): Promise<string> {
  const together = draft.files.reduce((sum, other) => sum + other.bytes, file.size);
  if (together > LARGEST) {
    return `Files that come along may have ${bytes(LARGEST)} together; put ${file.name} into the workspace while the job runs.`;
  }
  const content = base64(new Uint8Array(await file.arrayBuffer()));
  draft.files = [...draft.files.filter((other) => other.path !== file.name), { path: file.name, content, bytes: file.size }];
  return "";
}

function base64(data: Uint8Array): string {
  let text = "";
  // In pieces: a function takes only so many arguments.
  for (let at = 0; at < data.length; at += 0x8000) {
    text += String.fromCharCode(...data.subarray(at, at + 0x8000));
  }
  return btoa(text);
}
