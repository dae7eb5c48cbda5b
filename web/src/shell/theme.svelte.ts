// Light, dark, or as the system has it. The choice stays in this browser.

export type Theme = "auto" | "light" | "dark";
const THEMES: readonly Theme[] = ["auto", "light", "dark"];
const KEY = "bellglass-theme";

class ThemeChoice {
  current = $state<Theme>(read());

  constructor() {
    this.#show();
  }

  next(): void {
    this.current = THEMES[(THEMES.indexOf(this.current) + 1) % THEMES.length] ?? "auto";
    try {
      localStorage.setItem(KEY, this.current);
    } catch {
      // A browser that keeps nothing still gets the theme for now.
    }
    this.#show();
  }

  #show(): void {
    document.documentElement.dataset["theme"] = this.current;
  }
}

function read(): Theme {
  try {
    return THEMES.find((theme) => theme === localStorage.getItem(KEY)) ?? "auto";
  } catch {
    return "auto";
  }
}

export const theme = new ThemeChoice();
