// A notebook file in, text and pictures out.

import { expect, test } from "@playwright/test";
import { readNotebook } from "../../src/panes/notebook";

const code = (outputs: unknown[], source: unknown = "x") => ({ cell_type: "code", execution_count: 3, source, outputs });
const read = (cells: unknown[]) => readNotebook(JSON.stringify({ cells, metadata: { language_info: { name: "typescript" } } }));

test("cells are read with what they gave", () => {
  const notebook = read([
    code([{ output_type: "stream", name: "stderr", text: ["a\n", "b"] }], ["one\n", "two"]),
    code([{ output_type: "execute_result", data: { "text/plain": "42", "text/html": "<b>42</b>" } }]),
    code([{ output_type: "display_data", data: { "image/png": "aGk=\n", "text/plain": "<Figure>" } }]),
    code([{ output_type: "error", ename: "E", evalue: "no", traceback: ["first", "last"] }]),
    { cell_type: "markdown", source: "# words" },
  ]);
  expect(notebook?.language).toBe("typescript");
  expect(notebook?.cells.map((cell) => cell.outputs)).toEqual([
    [{ kind: "text", text: "a\nb", stream: "stderr" }],
    [{ kind: "text", text: "42", stream: "stdout" }],
    [{ kind: "picture", type: "image/png", data: new Uint8Array([104, 105]) }],
    [{ kind: "text", text: "first\nlast", stream: "stderr" }],
    [],
  ]);
  expect(notebook?.cells[0]).toMatchObject({ kind: "code", source: "one\ntwo", count: 3 });
  expect(notebook?.cells[4]).toMatchObject({ kind: "text", source: "# words", count: undefined });
});

test("what a hostile file says is bounded, and never more than text", () => {
  for (const text of ["", "[]", "null", '{"cells": 3}', "{"]) expect(readNotebook(text)).toBeUndefined();
  const odd = read([null, 3, { cell_type: "code", source: { a: 1 }, outputs: "x" }, code([null, { output_type: "widget" }, { output_type: "display_data", data: { "image/svg+xml": "<svg onload=x>", "text/html": "<script>" } }, { output_type: "display_data", data: { "image/png": "%%%" } }])]);
  expect(odd?.cells.map((cell) => cell.outputs.length)).toEqual([0, 0, 0, 0]);
  const long = read(Array.from({ length: 700 }, () => code([{ output_type: "stream", text: "y".repeat(300_000) }])));
  expect([long?.cells.length, long?.left]).toEqual([500, 200]);
  expect(long?.cells[0]?.outputs[0]).toMatchObject({ text: expect.stringMatching(/the rest is in the file\]$/) });
});
