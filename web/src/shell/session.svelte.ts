// Whether this browser is let in. Most servers are this machine's own and ask nobody.

import { logIn, logOut, whenLoginIsNeeded, whoAmI } from "../api/client";
import type { WhoAmI } from "../api/types";
import { isShared } from "./shared";

const KEY = "bellglass-session";

class Session {
  /** The server wants its token to be shown. */
  needed = $state(false);
  /** This browser has shown it, so there is something to log out of. */
  begun = $state(remembered());
  /** Grows with each login, so that what was refused before is tried again. */
  count = $state(0);

  /** Who this browser is to the server; unknown until it is asked. */
  who = $state.raw<WhoAmI>();

  constructor() {
    // Whoever came by a link has no token to show; the job's page says what is wrong with the link.
    whenLoginIsNeeded(() => (this.needed = !isShared()));
    if (this.begun) void this.#ask();
  }

  /** Whether somebody may schedule jobs and write things down; so it seems until the server says no. */
  get mayWork(): boolean {
    return this.who?.role !== "viewer";
  }

  async #ask(): Promise<void> {
    this.who = await whoAmI().catch(() => undefined);
  }

  async begin(token: string): Promise<void> {
    await logIn(token);
    this.needed = false;
    this.#remember(true);
    await this.#ask();
    this.count += 1;
  }

  async end(): Promise<void> {
    await logOut();
    this.#remember(false);
    this.who = undefined;
    this.needed = true;
  }

  /** The cookie itself is not for scripts to see, so that there is one is written down beside it. */
  #remember(begun: boolean): void {
    this.begun = begun;
    try {
      if (begun) localStorage.setItem(KEY, "yes");
      else localStorage.removeItem(KEY);
    } catch {
      // A browser that keeps nothing shows no button after the page is loaded again.
    }
  }
}

function remembered(): boolean {
  try {
    return localStorage.getItem(KEY) === "yes";
  } catch {
    return false;
  }
}

export const session = new Session();
