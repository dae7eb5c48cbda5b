// What is typed on a touch screen, as keys.

import { expect, test } from "@playwright/test";
import { keysBetween, namedKey, NOTHING_TYPED } from "../../src/desktop/typing";

const BACK = 0xff08;

test("the keys make of one text the other", () => {
  const cases: [string, string, number[]][] = [
    ["", "", []],
    ["ab", "ab", []],
    ["a", "ab", [0x62]],
    ["ab", "a", [BACK]],
    // A word that takes the place of another.
    ["so teh", "so the", [BACK, BACK, 0x68, 0x65]],
    ["x", "é€\n\t~", [BACK, 0xe9, 0x010020ac, 0xff0d, 0xff09, 0x7e]],
    // One key for one character, however it is kept.
    ["☕😀", "☕", [BACK]],
    ["", "😀", [0x0101f600]],
    [NOTHING_TYPED, NOTHING_TYPED.slice(0, -1), [BACK]],
    [NOTHING_TYPED, `${NOTHING_TYPED}A`, [0x41]],
  ];
  for (const [before, now, keys] of cases) expect(keysBetween(before, now), `${before} → ${now}`).toEqual(keys);
});

test("keys that change no text have names", () => {
  expect([namedKey("Escape"), namedKey("ArrowUp")]).toEqual([0xff1b, 0xff52]);
  for (const name of ["a", "Enter", "Backspace", "Tab", "Unidentified", "Shift"]) expect(namedKey(name), name).toBeUndefined();
});
