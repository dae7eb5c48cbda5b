// The time, once a second, for all that shows how long ago something was.

class Clock {
  now = $state(Date.now());

  constructor() {
    setInterval(() => {
      if (document.visibilityState === "visible") this.now = Date.now();
    }, 1000);
    document.addEventListener("visibilitychange", () => (this.now = Date.now()));
  }
}

export const clock = new Clock();
