// Keeps the newest in sight while a job runs, until somebody scrolls up to read; whoever comes back to
// the end is taken along again.

interface Circumstances {
  /** A job that was over before is read from its beginning. */
  live: boolean;
  isOver(): boolean;
}

const NEAR = 80;

export function followEnd(list: HTMLElement, { live, isOver }: Circumstances): (() => void) | undefined {
  if (!live) return undefined;
  const box = list.closest<HTMLElement>(".story");
  const scroller = box ?? document.documentElement;
  const source: EventTarget = box ?? document;
  // Where the page scrolls as a whole, its top is seen first.
  let following = box !== null;
  let last = scroller.scrollTop;
  let done = false;

  function moved(): void {
    const now = scroller.scrollTop;
    // Content that grows moves nothing up, so this was a person.
    if (now < last - 2) following = false;
    if (scroller.scrollHeight - now - scroller.clientHeight < NEAR) following = true;
    last = now;
  }

  const observer = new ResizeObserver(() => {
    if (done || !following) return;
    scroller.scrollTop = scroller.scrollHeight;
    // What is unfolded after the end is not news.
    if (isOver()) setTimeout(() => (done = true), 500);
  });
  observer.observe(list);
  source.addEventListener("scroll", moved, { passive: true });
  return () => {
    observer.disconnect();
    source.removeEventListener("scroll", moved);
  };
}
