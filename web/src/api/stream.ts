// An event stream that comes back by itself: after a cut line, a restarted server, a refused request.
// The browser's own EventSource gives up for good after some of these.

export type StreamState = "connecting" | "open" | "lost";

export interface Stream {
  close(): void;
}

const FIRST_PAUSE = 250;
const LONGEST_PAUSE = 5000;

/**
 * `address` is asked before every attempt, so that it can say what was seen last. `onMessage` may
 * throw to say that what came cannot be right; the stream is then opened anew.
 */
export function openStream(
  address: () => string,
  onMessage: (data: string) => void,
  onState: (state: StreamState) => void,
): Stream {
  let source: EventSource | undefined;
  let timer: ReturnType<typeof setTimeout> | undefined;
  let pause = FIRST_PAUSE;
  let closed = false;

  function connect(): void {
    clearTimeout(timer);
    source?.close();
    if (closed) return;
    const current = new EventSource(address());
    source = current;
    current.onopen = () => {
      pause = FIRST_PAUSE;
      onState("open");
    };
    current.onmessage = (message) => {
      try {
        onMessage(String(message.data));
      } catch {
        again();
      }
    };
    current.onerror = again;
  }

  function again(): void {
    source?.close();
    if (closed) return;
    onState("lost");
    clearTimeout(timer);
    timer = setTimeout(connect, pause);
    pause = Math.min(pause * 2, LONGEST_PAUSE);
  }

  /** Whoever comes back to the page or to the network need not wait for the next attempt. */
  function hurry(): void {
    if (source?.readyState === EventSource.CLOSED && document.visibilityState === "visible") {
      connect();
    }
  }

  addEventListener("online", hurry);
  document.addEventListener("visibilitychange", hurry);
  onState("connecting");
  connect();

  return {
    close() {
      closed = true;
      clearTimeout(timer);
      source?.close();
      removeEventListener("online", hurry);
      document.removeEventListener("visibilitychange", hurry);
    },
  };
}
