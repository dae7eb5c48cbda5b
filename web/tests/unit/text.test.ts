// Text in, text out: playbooks, output of programs, numbers.

import { expect, test } from "@playwright/test";
import { ago, bytes, duration, elapsed, firstLine } from "../../src/format";
import { languageOfPath } from "../../src/highlight/languages";
import { looksLikePlaybook, readPlaybook } from "../../src/home/playbook";
import { lines } from "../../src/job/output";

const plain = (text: string) => lines(text).map((line) => line.map((run) => run.text).join(""));

test("what is dropped is read as a playbook, or it is said why not", () => {
  const step = { tool: "shell", command: "ls" };
  for (const text of [JSON.stringify({ name: "x", steps: [step] }), JSON.stringify([step]), JSON.stringify(step), `${JSON.stringify(step)}\n${JSON.stringify(step)}\n`]) {
    const read = readPlaybook(text);
    expect("draft" in read && read.draft.steps[0]).toEqual(step);
    expect(looksLikePlaybook(text)).toBe(true);
  }
  const task = readPlaybook('{"prompt": "do it", "model": "m"}');
  expect("draft" in task && task.draft).toMatchObject({ mode: "task", task: "do it", rest: { model: "m" } });
  for (const [text, fault] of [["ls -la", /not JSON/], ["3", /object/], ["{}", /neither/], ['{"steps": 3}', /list/], ['{"steps": [{}]}', /Step 1/]] as const) {
    expect(readPlaybook(text)).toEqual({ fault: expect.stringMatching(fault) });
    expect(looksLikePlaybook(text)).toBe(false);
  }
});

test("colours are kept, and all else that a terminal would obey is dropped", () => {
  expect(lines("\x1b[1;31mbad\x1b[0m ok\n")).toEqual([[{ text: "bad", style: "red bold" }, { text: " ok", style: "" }]]);
  expect(plain("10%\r50%\r100%\ndone\r\n")).toEqual(["100%", "done"]);
  expect(plain("a\x1b]0;title\x07b\x1b[2Jc\x00\x08d")).toEqual(["abcd"]);
  expect(plain("\x1b[38;5;")).toEqual(plain("\x1b[38;5;").map((line) => line.replaceAll("\x1b", "")));
  expect(lines("")).toEqual([]);
  expect(lines("\n\n")).toHaveLength(2);
});

test("markup in output is text like any other", () => {
  expect(lines("<script>alert(1)</script>")).toEqual([[{ text: "<script>alert(1)</script>", style: "" }]]);
});

test("numbers are written for people", () => {
  expect([0, 1023, 1024, 1536, 1024 ** 2 * 10, 1024 ** 3 * 4].map(bytes)).toEqual(["0 B", "1023 B", "1 KiB", "1.5 KiB", "10 MiB", "4 GiB"]);
  expect([5, 1234, 59_990, 125_000, 3_840_000].map(duration)).toEqual(["5 ms", "1.2 s", "1 min", "2 min 5 s", "1 h 4 min"]);
  expect([999, 59_999, 61_000].map(elapsed)).toEqual(["0 s", "59 s", "1 min 1 s"]);
  expect([0, 30_000, 120_000, 7_200_000, 90_000_000].map((past) => ago(0, past))).toEqual(["just now", "30 s ago", "2 min ago", "2 h ago", "yesterday"]);
  expect(firstLine("\n  \n set -e \nls")).toBe("set -e");
});

test("files are coloured by their names", () => {
  expect(["a/b.tsx", "Makefile", "x.HTML", "noending", "a.b/c"].map(languageOfPath)).toEqual(["typescript", "bash", "xml", undefined, undefined]);
});
