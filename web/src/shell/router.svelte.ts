// Where we are: the address, as one of the pages there are. Links to our own pages are followed without
// loading anything again.

export type Place = { page: "home" } | { page: "memory" } | { page: "job"; id: string; pane: string } | { page: "nowhere" };

function placeOf(path: string, fragment: string): Place {
  if (path === "/") return { page: "home" };
  if (path === "/memory") return { page: "memory" };
  const id = /^\/watch\/([^/]+)\/?$/.exec(path)?.[1];
  return id ? { page: "job", id: decodeURIComponent(id), pane: fragment } : { page: "nowhere" };
}

class Router {
  place = $state.raw<Place>(this.#here());

  constructor() {
    addEventListener("popstate", () => (this.place = this.#here()));
    addEventListener("hashchange", () => (this.place = this.#here()));
    document.addEventListener("click", (event) => this.#follow(event));
  }

  #here(): Place {
    return placeOf(location.pathname, location.hash.slice(1));
  }

  go(path: string): void {
    history.pushState(null, "", path);
    this.place = this.#here();
    scrollTo(0, 0);
    // Who listens to the page hears what it is now, and the keyboard starts at its top.
    document.querySelector<HTMLElement>("h1")?.focus();
  }

  /** Another pane of the same page: worth keeping in the address, not worth a step back. */
  choosePane(pane: string): void {
    history.replaceState(null, "", `#${pane}`);
    this.place = this.#here();
  }

  #follow(event: MouseEvent): void {
    const link = (event.target as Element | null)?.closest?.("a");
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
    if (!link || !plain || event.defaultPrevented || link.target || link.hasAttribute("download")) return;
    if (link.origin !== location.origin) return;
    const ours = ["/", "/memory"].includes(link.pathname) || link.pathname.startsWith("/watch/");
    if (!ours || link.hash) return;
    event.preventDefault();
    this.go(link.pathname);
  }
}

export const router = new Router();
