// As much of noVNC as this page uses; it brings no types of its own.

declare module "@novnc/novnc" {
  export default class RFB extends EventTarget {
    constructor(target: Element, channel: unknown, options?: { shared?: boolean });
    viewOnly: boolean;
    scaleViewport: boolean;
    resizeSession: boolean;
    clipViewport: boolean;
    dragViewport: boolean;
    showDotCursor: boolean;
    background: string;
    qualityLevel: number;
    compressionLevel: number;
    disconnect(): void;
    sendCredentials(credentials: { password: string }): void;
    clipboardPasteFrom(text: string): void;
    focusOnClick: boolean;
    sendKey(keysym: number, code: string | null): void;
    focus(options?: FocusOptions): void;
    blur(): void;
  }
}
