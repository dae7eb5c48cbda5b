// A WebSocket to a desktop. noVNC sees its binary messages, which are the desktop's own; the text ones are
// between this page and the server: who has the desktop in hand, and how long a word takes.

import type { Sample } from "./pace";

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
  /** Bytes of pictures since the last sample was taken. */
  #received = 0;
  #sampledAt: number | undefined;
  /** When the word was sent that is not back yet. */
  #askedAt: number | undefined;
  #latency = 0;

  constructor(url: string, hear: (word: Word) => void) {
    this.#socket = new WebSocket(url, ["binary"]);
    this.#socket.binaryType = "arraybuffer";
    this.#socket.onopen = (event) => this.onopen?.(event);
    this.#socket.onerror = (event) => this.onerror?.(event);
    this.#socket.onclose = (event) => this.onclose?.(event);
    this.#socket.onmessage = (event: MessageEvent) => {
      if (typeof event.data === "string") {
        const word = JSON.parse(event.data) as Word | { type: "pong" };
        if (word.type === "pong") this.#measure();
        else hear(word);
        return;
      }
      this.#received += (event.data as ArrayBuffer).byteLength;
      this.onmessage?.(event);
    };
  }

  /**
   * What was seen of the line since this was called last. Sends a word whose way back lies behind the pictures that
   * are under way; nothing is known until it was sent once, and none is sent before the one before is back.
   */
  sample(): Sample | undefined {
    if (this.readyState !== WebSocket.OPEN) return undefined;
    const now = performance.now();
    const sampledAt = this.#sampledAt;
    const seen = sampledAt === undefined ? undefined : {
      bytesPerSecond: (this.#received * 1000) / Math.max(1, now - sampledAt),
      latency: this.#askedAt === undefined ? this.#latency : now - this.#askedAt,
    };
    this.#received = 0;
    this.#sampledAt = now;
    if (this.#askedAt === undefined) {
      this.#askedAt = now;
      this.#socket.send(JSON.stringify({ type: "ping" }));
    }
    return seen;
  }

  #measure(): void {
    if (this.#askedAt === undefined) return;
    this.#latency = performance.now() - this.#askedAt;
    this.#askedAt = undefined;
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

/** Whether the server is this very machine. */
export function isThisMachine(): boolean {
  return ["localhost", "127.0.0.1", "[::1]"].includes(location.hostname);
}
