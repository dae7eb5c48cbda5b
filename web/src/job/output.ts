// What a program wrote, as lines that can be shown: colours are kept, everything else that a terminal
// would obey is dropped. Bounded, because programs are not.

import { createAnsiSequenceParser } from "ansi-sequence-parser";

export interface Run {
  text: string;
  /** Names of classes; made here, never taken from the output. */
  style: string;
}

export type Line = Run[];

const COLOURS: Record<string, string> = {
  black: "dim", red: "red", green: "green", yellow: "yellow", blue: "blue", magenta: "magenta",
  cyan: "cyan", white: "", brightBlack: "dim", brightRed: "red", brightGreen: "green",
  brightYellow: "yellow", brightBlue: "blue", brightMagenta: "magenta", brightCyan: "cyan",
  brightWhite: "",
};

/** Sequences that move the cursor or set a title, and characters that have no picture. */
const MOVES = /\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[()][A-Z0-9]|\x1b[=>78cDEHMNOPVWXZ^_]/g;
const UNSEEN = /[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f]/g;

export function lines(text: string): Line[] {
  const plain = text.replace(MOVES, "").replace(/\r+\n/g, "\n").replace(UNSEEN, "");
  // A progress bar writes over itself: only its last state is left.
  const settled = plain.includes("\r") ? plain.replace(/[^\n]*\r(?=[^\n])/g, "").replace(/\r/g, "") : plain;
  const whole = settled.endsWith("\n") ? settled.slice(0, -1) : settled;
  if (whole === "") return [];
  if (!whole.includes("\x1b")) return whole.split("\n").map((line) => [{ text: line, style: "" }]);
  return styled(whole);
}

function styled(text: string): Line[] {
  const result: Line[] = [[]];
  for (const token of createAnsiSequenceParser().parse(text)) {
    const classes = [];
    if (token.foreground?.type === "named") classes.push(COLOURS[token.foreground.name] ?? "");
    if (token.decorations.has("bold")) classes.push("bold");
    if (token.decorations.has("dim")) classes.push("dim");
    if (token.decorations.has("underline")) classes.push("under");
    const style = classes.filter(Boolean).join(" ");
    token.value.split("\n").forEach((part, i) => {
      if (i > 0) result.push([]);
      if (part !== "") result.at(-1)?.push({ text: part.replaceAll("\x1b", ""), style });
    });
  }
  return result;
}
