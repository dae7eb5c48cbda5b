// Whether this browser is let in. Most servers are this machine's own and ask nobody.

import { logIn, logOut, whenLoginIsNeeded } from "../api/client";

class Session {
  /** The server wants its token to be shown. */
  needed = $state(false);
  /** This browser has shown it, so there is something to log out of. */
  begun = $state(false);
  /** Grows with each login, so that what was refused before is tried again. */
  count = $state(0);

  constructor() {
    whenLoginIsNeeded(() => (this.needed = true));
  }

  async begin(token: string): Promise<void> {
    await logIn(token);
    this.needed = false;
    this.begun = true;
    this.count += 1;
  }

  async end(): Promise<void> {
    await logOut();
    this.begun = false;
    this.needed = true;
  }
}

export const session = new Session();
