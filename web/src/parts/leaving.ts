// How the keyboard leaves what takes every key, such as a terminal and a desktop that is worked with.

/** How it is said to people. */
export const LEAVING = "Shift+Esc leaves by keyboard";

/** Whether a key press asks to leave. */
export function asksToLeave(event: KeyboardEvent): boolean {
  return event.type === "keydown" && event.key === "Escape" && event.shiftKey && !event.ctrlKey && !event.altKey && !event.metaKey;
}
