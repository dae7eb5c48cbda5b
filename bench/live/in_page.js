// Runs in a page that is measured, before anything of the page itself. Moments are milliseconds of the machine's
// clock. What was asked for is told by the promise `bench.answer`.
{
  const now = () => performance.timeOrigin + performance.now();

  /** When what the document says now is on the screen, by the browser's own word: it tells that of a mark which is
   *  put into the same frame. */
  const drawn = () =>
    new Promise((resolve) => {
      const mark = document.createElement("span");
      mark.textContent = "·";
      mark.style.cssText = "position: fixed; left: 0; bottom: 0; pointer-events: none";
      mark.setAttribute("elementtiming", `mark ${marks.size}`);
      marks.set(`mark ${marks.size}`, (at) => {
        mark.remove();
        resolve(at);
      });
      document.body.append(mark);
    });
  const marks = new Map();
  const observer = new PerformanceObserver((list) => {
    for (const { identifier, renderTime } of list.getEntries()) marks.get(identifier)?.(performance.timeOrigin + renderTime);
  });
  observer.observe({ type: "element" });

  const onChange = (look) => {
    const observer = new MutationObserver(look);
    observer.observe(document, { subtree: true, childList: true, characterData: true });
    return observer;
  };

  /** From the navigation until a letter that was typed into the box made the button usable, and that was drawn. */
  const interactive = async () => {
    const box = await new Promise((resolve) => {
      const observer = onChange(() => {
        const found = document.querySelector("[aria-label='New job'] textarea");
        if (found) {
          observer.disconnect();
          resolve(found);
        }
      });
    });
    for (;;) {
      box.focus();
      document.execCommand("insertText", false, "a");
      await new Promise(requestAnimationFrame);
      const isUsable = !document.querySelector("[aria-label='New job'] button.primary").disabled;
      if (isUsable) return (await drawn()) - performance.timeOrigin;
    }
  };

  /** When so many numbered lines were drawn that were written after the page had shown its first. Each says in seconds
   *  when that was. */
  const ticks = (selector, count) =>
    new Promise((resolve, reject) => {
      const moments = {};
      let since;
      let last = 0;
      onChange(async () => {
        const place = document.querySelector(selector);
        const lines = [...(place?.textContent ?? "").matchAll(/tick (\d+) ([\d.]+)\n/g)];
        const fresh = lines.map(([, n, written]) => [Number(n), written * 1000]).filter(([n]) => n > last);
        if (fresh.length === 0) return;
        last = fresh.at(-1)[0];
        const at = await drawn();
        const { top, bottom } = place.getBoundingClientRect();
        if (bottom <= 0 || top >= innerHeight) reject(new Error("what came is not where somebody would see it"));
        since ??= at;
        for (const [n, written] of fresh) if (written > since) moments[n] = at;
        if (Object.keys(moments).length >= count) resolve(moments);
      });
    });

  /** As little as a page can do to show the same events. */
  const bare = (events) => {
    addEventListener("DOMContentLoaded", () => {
      const place = document.createElement("pre");
      document.body.replaceChildren(place);
      new EventSource(events).onmessage = ({ data }) => {
        const event = JSON.parse(data);
        if (event.type === "step.output") place.textContent = event.text;
      };
    });
  };

  /** When a point of the desktop's picture took on another colour, and which: so many times. */
  const flips = (colours, [x, y], count) =>
    new Promise((resolve) => {
      const seen = [];
      let last;
      const distance = (a, b) => a.reduce((sum, each, i) => sum + Math.abs(each - b[i]), 0);
      const look = async () => {
        requestAnimationFrame(look);
        const context = document.querySelector("[data-stand='shown'] canvas")?.getContext("2d");
        if (!context?.canvas.width) return;
        const point = [...context.getImageData(x, y, 1, 1).data].slice(0, 3);
        const colour = colours.findIndex((each) => distance(each, point) < 60);
        if (colour < 0 || colour === last) return;
        last = colour;
        seen.push({ colour, at: await drawn() });
        if (seen.length === count) resolve(seen);
      };
      requestAnimationFrame(look);
    });

  /** The same page over another's bridge. */
  const throughBridge = (address) => {
    globalThis.WebSocket = class extends WebSocket {
      constructor(_address, protocols) {
        super(address, protocols);
      }
    };
  };

  globalThis.bench = { now, interactive, ticks, bare, flips, throughBridge };
}
