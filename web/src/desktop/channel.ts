// A WebSocket to a desktop. noVNC sees its binary messages, which are the desktop's own; the text ones are
// between this page and the server: who has the desktop in hand.

export type Word =
  | { type: "taken" }
  | { type: "returned" }
  | { type: "refused"; code: string; message: string };

/** Looks like a WebSocket, as far as noVNC looks. */
export class DesktopChannel {
  binaryType: BinaryType = "arraybuffer";
  onopen: ((event: Event) => void) | null = null;
  onmessage: ((event: MessageEvent) => void) | null = null;
  onerror: ((event: Event) => void) | null = null;
  onclose: ((event: CloseEvent) => void) | null = null;
  readonly protocol = "binary";
  readonly #socket: WebSocket;

  constructor(url: string, hear: (word: Word) => void) {
    this.#socket = new WebSocket(url, ["binary"]);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = (event) => this.onopen?.(event);
    this.#socket.onerror = (event) => this.onerror?.(event);
    this.#socket.onclose = (event) => this.onclose?.(event);
    this.#socket.onmessage = (event: MessageEvent) => {
      if (typeof event.data === "string") hear(JSON.parse(event.data) as Word);
      else this.onmessage?.(event);
    };
  }

  get readyState(): number {
    return this.#socket.readyState;
  }

  send(data: ArrayBuffer | ArrayBufferView<ArrayBuffer>): void {
    this.#socket.send(data);
  }

  close(code?: number, reason?: string): void {
    this.#socket.close(code, reason);
  }

  ask(what: "take" | "return"): void {
    if (this.readyState === WebSocket.OPEN) this.#socket.send(JSON.stringify({ type: what }));
  }
}

/** The address of a WebSocket beside a page. */
export function socketAddress(path: string): string {
  const address = new URL(path, location.href);
  address.protocol = address.protocol === "https:" ? "wss:" : "ws:";
  return address.href;
}
