// What somebody types on a touch screen, as keys. A keyboard of that kind presses no keys: it changes a text, a
// letter or a whole word at a time, and takes words back to put others in their place. Pure: texts in, keys out.

const RETURN = 0xff0d;
const BACKSPACE = 0xff08;
const TAB = 0xff09;

/** Keys that change no text, by the name that browsers have for them. */
const OTHERS: Record<string, number> = {
  Escape: 0xff1b, ArrowLeft: 0xff51, ArrowUp: 0xff52, ArrowRight: 0xff53, ArrowDown: 0xff54,
  Home: 0xff50, End: 0xff57, PageUp: 0xff55, PageDown: 0xff56, Delete: 0xffff,
};

/**
 * What stands in the field before anything is typed, so that there is something to take back. Words of one letter:
 * whoever takes back a word at a time must not take back all of it.
 */
export const NOTHING_TYPED = "x ".repeat(32);

/** The keys that make of the text that was there the one that is there now. */
export function keysBetween(before: string, now: string): number[] {
  const [old, fresh] = [[...before], [...now]];
  let same = 0;
  while (same < old.length && same < fresh.length && old[same] === fresh[same]) same += 1;
  return [...old.slice(same).map(() => BACKSPACE), ...fresh.slice(same).map(keyOf)];
}

/** The key of a name such as `Escape`, if it is one that no text tells of. */
export function namedKey(name: string): number | undefined {
  return OTHERS[name];
}

/** The number that X has for a character. */
function keyOf(character: string): number {
  const point = character.codePointAt(0) ?? 0;
  if (character === "\n") return RETURN;
  if (character === "\t") return TAB;
  const isLatin = (point >= 0x20 && point <= 0x7e) || (point >= 0xa0 && point <= 0xff);
  return isLatin ? point : 0x01000000 | point;
}
