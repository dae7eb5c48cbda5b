// How good a desktop's pictures are to be, decided by how they arrive. Pure: samples in, a step of the
// ladder out.
//
// What tells is not how much arrives, which is little whenever little happens, but how long a word takes
// there and back behind the pictures: it is late when they fill the line.

/** What noVNC is to ask for: how well pictures are kept, and how hard they are packed. Best first. */
export const LADDER: readonly (readonly [quality: number, compression: number])[] = [
  [8, 1],
  [6, 2],
  [4, 4],
  [2, 6],
  [0, 9],
];

/** What was seen of the line in about a second. */
export interface Sample {
  bytesPerSecond: number;
  /** Milliseconds that a word took there and back, or has taken so far. */
  latency: number;
}

/** So much later than at its best, and the pictures are in the way. */
const LATE = 150;
/** So late, and a single step would not do. */
const MUCH_TOO_LATE = 1500;
/** Less than this fills no line: if a word is late then, it is not for the pictures. */
const NEXT_TO_NOTHING = 4 * 1024;
/** So many late words in a row are no accident. */
const LATE_IN_A_ROW = 2;
/** So many words in time, and there may be room for more. */
const CALM = 6;
/** A step up takes about so many times the bytes. */
const STEP_UP = 2;

/**
 * The step to go to from `step`. `since` are the samples since the last change, the newest last; `before` are
 * those of the same line before it, which say how fast a word can be and how much went through when it was full.
 */
export function nextStep(step: number, since: readonly Sample[], before: readonly Sample[] = []): number {
  const all = [...before, ...since];
  const best = Math.min(...all.map(({ latency }) => latency));
  const isLate = ({ bytesPerSecond, latency }: Sample) => latency - best > LATE && bytesPerSecond > NEXT_TO_NOTHING;

  const newest = since.slice(-LATE_IN_A_ROW);
  if (newest.length === LATE_IN_A_ROW && newest.every(isLate)) {
    const down = newest.every(({ latency }) => latency - best > MUCH_TOO_LATE) ? 2 : 1;
    return Math.min(LADDER.length - 1, step + down);
  }

  const calm = since.slice(-CALM);
  if (calm.length < CALM || calm.some(isLate)) return step;
  const full = Math.max(0, ...all.filter(isLate).map(({ bytesPerSecond }) => bytesPerSecond));
  const used = Math.max(...calm.map(({ bytesPerSecond }) => bytesPerSecond));
  const hasRoom = full === 0 || used * STEP_UP < full;
  return hasRoom ? Math.max(0, step - 1) : step;
}

/** As many samples of a line as are worth remembering. */
const MOST_SAMPLES = 60;

/** The pace of one connection, from the sharpest pictures on. */
export class Pace {
  step: number;
  #since: Sample[] = [];
  #before: Sample[] = [];

  constructor(step = 0) {
    this.step = step;
  }

  /** Takes in a sample. Tells whether the step is another one now. */
  take(sample: Sample): boolean {
    this.#since = [...this.#since, sample].slice(-MOST_SAMPLES);
    const next = nextStep(this.step, this.#since, this.#before);
    if (next === this.step) return false;
    this.step = next;
    this.#before = [...this.#before, ...this.#since].slice(-MOST_SAMPLES);
    this.#since = [];
    return true;
  }
}
