// A terminal as xterm.js draws it, within this page's policy.

import "@xterm/xterm/css/xterm.css";
import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";

const COLOURS = {
  background: "#0f1716", foreground: "#e6efed", cursor: "#5fd3c6", cursorAccent: "#0f1716", selectionBackground: "#2c4a46",
  black: "#1a2423", red: "#ff9494", green: "#63d29a", yellow: "#ecba6b", blue: "#7ab8ff", magenta: "#f0a0dc", cyan: "#5fd3c6", white: "#c9d6d3",
  brightBlack: "#7b908c", brightRed: "#ffb3b3", brightGreen: "#8ee6b8", brightYellow: "#f6d296", brightBlue: "#a5d0ff", brightMagenta: "#f8c4ea", brightCyan: "#93e8de", brightWhite: "#ffffff",
};

export interface Drawn {
  terminal: Terminal;
  /** Makes the terminal as large as the place that it is shown in. */
  fit(): void;
}

export function draw(element: HTMLElement): Drawn {
  const terminal = new Terminal({
    fontFamily: getComputedStyle(document.documentElement).getPropertyValue("--mono"),
    fontSize: 13,
    lineHeight: 1.15,
    cursorBlink: true,
    scrollback: 5000,
    screenReaderMode: true,
    theme: COLOURS,
    // What runs in the terminal is not to be trusted with links.
    linkHandler: { activate: () => {} },
  });
  const fitting = new FitAddon();
  terminal.loadAddon(fitting);
  withoutInlineStyles(document, () => terminal.open(element));
  return { terminal, fit: () => fitting.fit() };
}

/**
 * xterm.js writes its rules into style elements, which this page's policy forbids. While it makes them, it is
 * given elements that hand their rules to the browser as stylesheets made by a script, which it allows.
 */
function withoutInlineStyles(page: Document, act: () => void): void {
  const createElement = page.createElement.bind(page);
  const instead = (name: string, options?: ElementCreationOptions) => (name === "style" ? stylesheet(page, createElement("span")) : createElement(name, options));
  Object.defineProperty(page, "createElement", { value: instead, configurable: true });
  try {
    act();
  } finally {
    // What lies beneath is the browser's own again.
    Reflect.deleteProperty(page, "createElement");
  }
}

function stylesheet(page: Document, element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  page.adoptedStyleSheets.push(sheet);
  element.hidden = true;
  Object.defineProperty(element, "textContent", { set: (rules: string) => sheet.replaceSync(rules) });
  const remove = element.remove.bind(element);
  element.remove = () => {
    page.adoptedStyleSheets = page.adoptedStyleSheets.filter((other) => other !== sheet);
    remove();
  };
  return element;
}
