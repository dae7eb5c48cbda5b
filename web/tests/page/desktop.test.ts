// A desktop on the page: looked at by many, worked with by one, and carried by whatever line there is.

import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import type { Page, WebSocketRoute } from "@playwright/test";
import { expect, expectAccessible, test, until } from "../fixtures";
import type { Server } from "../server";

/** A terminal of one colour, and nothing until it is there. */
const xterm = (options: string) => `setsid xterm ${options} >/dev/null 2>&1 & until xdotool search --class xterm; do sleep 0.1; done`;
const red = xterm("-bg '#ff0000' -fg '#ffffff' -geometry 200x60+0+0");

/** How many of a few hundred points of the desktop's picture have this colour. */
async function points(page: Page, colour: [number, number, number]): Promise<number> {
  return page.locator("[data-stand='shown'] canvas").evaluate((canvas, [r, g, b]) => {
    const { width, height } = canvas as HTMLCanvasElement;
    const { data } = (canvas as HTMLCanvasElement).getContext("2d")!.getImageData(0, 0, width, height);
    let found = 0;
    for (let i = 0; i < 400; i += 1) {
      const at = (Math.floor((i / 20) | 0) * Math.floor(height / 20) * width + (i % 20) * Math.floor(width / 20)) * 4;
      const [red, green, blue] = [data[at]!, data[at + 1]!, data[at + 2]!];
      if (Math.abs(red - r) + Math.abs(green - g) + Math.abs(blue - b) < 60) found += 1;
    }
    return found;
  }, colour);
}

const isRed = (page: Page) => points(page, [255, 0, 0]);

async function openDesktop(page: Page, server: Server, id: string): Promise<void> {
  await page.goto(`${server.url}/watch/${id}#desktop`);
  await expect(page.locator("[data-stand='shown'] canvas")).toBeVisible();
}

/** Whether there is a file of this name in the workspace. */
async function has(server: Server, id: string, name: string): Promise<boolean> {
  return (await fetch(`${server.url}/jobs/${id}/files/${name}`)).ok;
}

test("the desktop shows what the job does, and belongs to one at a time", async ({ page, server, browser }) => {
  const id = await server.schedule({
    name: "a desktop",
    desktop: true,
    steps: [
      until("go.txt"),
      { tool: "shell", command: red },
      until("click.txt"),
      { tool: "computer", action: "move", x: 10, y: 10 },
      { tool: "shell", command: "echo moved > moved.txt" },
      until("enough.txt"),
    ],
  });
  await openDesktop(page, server, id);
  expect(await isRed(page)).toBeLessThan(20);
  await server.put(id, "go.txt");
  await expect.poll(() => isRed(page)).toBeGreaterThan(200);
  for (const colorScheme of ["dark", "light"] as const) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }

  // A second viewer sees the same at the same time.
  const other = await browser.newPage();
  await openDesktop(other, server, id);
  await expect.poll(() => isRed(other)).toBeGreaterThan(200);

  // Who only looks can do nothing; who has taken over can.
  await page.getByRole("button", { name: "Take over" }).click();
  await expect(page.getByText("Yours now; the job waits")).toBeVisible();
  await expect(other.getByText("Another person works with it")).toBeVisible();
  await other.getByRole("button", { name: "Take over" }).click();
  await expect(other.getByRole("alert")).toContainText("works with the desktop");
  const canvas = page.locator("[data-stand='shown'] canvas");
  await canvas.click({ position: { x: 60, y: 60 } });
  await page.keyboard.type("touch typed.txt\n");
  await expect.poll(() => has(server, id, "typed.txt")).toBe(true);
  await page.keyboard.press("Shift+Escape");
  await expect(page.getByRole("button", { name: "Hand back" })).toBeFocused();

  // The job waits with the mouse until it is handed back.
  await server.put(id, "click.txt");
  await expect(page.locator("[data-step='3']")).toContainText("click.txt");
  await expect.poll(async () => (await server.job(id)).steps[2]?.status).toBe("succeeded");
  await page.getByRole("button", { name: "Hand back" }).click();
  await expect.poll(() => has(server, id, "moved.txt")).toBe(true);
  const log = (await (await fetch(`${server.url}/jobs/${id}/events?format=jsonl`)).text()).trim().split("\n");
  const events = log.map((line) => JSON.parse(line) as { type: string; n?: number });
  const at = (type: string, n?: number) => events.findIndex((event) => event.type === type && event.n === n);
  expect(at("step.finished", 3)).toBeLessThan(at("desktop.returned"));
  expect(at("step.started", 4)).toBeGreaterThan(at("desktop.returned"));
  await expect(page.locator("[data-kind='taken']")).toBeVisible();
  await expect(page.locator("[data-kind='returned']")).toBeVisible();

  // Who leaves hands back, whether they say so or not.
  await other.getByRole("button", { name: "Take over" }).click();
  await expect(other.getByText("Yours now; the job waits")).toBeVisible();
  await other.close();
  await expect(page.locator("[data-kind='returned']")).toHaveCount(2);

  await page.goto(`${server.url}/jobs/${id}/desktop/`);
  await expect(page.locator("[data-stand='shown'] canvas")).toBeVisible();
  await expectAccessible(page);
  await server.put(id, "enough.txt");
});

test("on a phone the desktop is typed on with the keyboard of the screen", async ({ browser, server }) => {
  const context = await browser.newContext({ viewport: { width: 375, height: 720 }, hasTouch: true, isMobile: true });
  const page = await context.newPage();
  const id = await server.schedule({
    desktop: true,
    steps: [{ tool: "shell", command: xterm("-u8 -geometry 200x60+0+0 -e 'head -n 1 > typed.txt'") }, until("enough.txt")],
  });
  await openDesktop(page, server, id);
  await expect.poll(async () => (await server.job(id)).steps[1]?.status).toBe("running");
  await expect(page.getByRole("tab", { name: "Timeline" })).toBeVisible();
  expect(await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth)).toBe(0);
  const keyboard = page.getByRole("button", { name: "Keyboard" });
  await expect(keyboard).toHaveCount(0);
  await page.getByRole("button", { name: "Take over" }).tap();
  await expect(page.getByText("Yours now; the job waits")).toBeVisible();
  await page.locator("[data-stand='shown'] canvas").tap({ position: { x: 60, y: 60 } });
  await keyboard.tap();
  const field = page.getByLabel("Type on the desktop");
  await expect(field).toBeFocused();
  await expect(keyboard).toHaveAttribute("aria-pressed", "true");
  await expectAccessible(page);
  // Such a keyboard changes a text: letters, whole words, and words that take the place of others.
  await page.keyboard.insertText("Helo");
  await page.keyboard.press("Backspace");
  await page.keyboard.insertText("lo, wörld ☕");
  // A tap on the picture leaves the keyboard where it is.
  await page.locator("[data-stand='shown'] canvas").tap({ position: { x: 60, y: 60 } });
  await expect(field).toBeFocused();
  await page.keyboard.press("Enter");
  await expect.poll(async () => (await fetch(`${server.url}/jobs/${id}/files/typed.txt`)).text()).toBe("Hello, wörld ☕\n");
  await keyboard.tap();
  await expect(field).not.toBeFocused();
  await page.getByRole("button", { name: "Hand back" }).tap();
  await expect(keyboard).toHaveCount(0);
  await server.put(id, "enough.txt");
  await context.close();
});

test("the clipboard goes both ways while somebody has the desktop in hand", async ({ page, server }) => {
  const id = await server.schedule({
    desktop: true,
    steps: [
      { tool: "shell", command: xterm("-u8 -xrm 'XTerm*selectToClipboard: true' -geometry 200x60+0+0 -e 'head -n 1 > pasted.txt'") },
      until("copy.txt"),
      { tool: "shell", command: "printf 'copied in the sandbox: ☕' | xclip -i -selection clipboard >/dev/null 2>&1" },
      until("enough.txt"),
    ],
  });
  await openDesktop(page, server, id);
  await expect(page.locator("[data-step='2']")).toBeVisible();
  await page.getByRole("button", { name: "Take over" }).click();
  await expect(page.getByText("Yours now; the job waits")).toBeVisible();
  await page.getByRole("button", { name: "Clipboard" }).click();
  const box = page.getByLabel("The desktop's clipboard");
  await server.put(id, "copy.txt");
  await expect(box).toHaveValue("copied in the sandbox: ☕");
  await expectAccessible(page);

  // What is put there is pasted by a program that knows nothing of us.
  await box.fill("pasted from the page: ☕\n");
  await page.getByRole("button", { name: "Put it there" }).click();
  await page.locator("[data-stand='shown'] canvas").click({ position: { x: 60, y: 60 } });
  await page.keyboard.press("Shift+Insert");
  await expect.poll(async () => (await fetch(`${server.url}/jobs/${id}/files/pasted.txt`)).text()).toBe("pasted from the page: ☕\n");

  // Who hands back has no hand on it any more.
  await page.getByRole("button", { name: "Hand back" }).click();
  await page.getByRole("button", { name: "Clipboard" }).click();
  await expect(page.getByRole("button", { name: "Put it there" })).toBeDisabled();
  await server.put(id, "enough.txt");
});

/** The colour of the picture at a place of what is seen of it. */
async function colourAt(page: Page, x: number, y: number): Promise<number[]> {
  return page.locator("[data-stand='shown'] canvas").evaluate((canvas, [x, y]) => [...(canvas as HTMLCanvasElement).getContext("2d")!.getImageData(x!, y!, 1, 1).data].slice(0, 3), [x, y]);
}

async function drag(page: Page, from: number, to: number): Promise<void> {
  const box = (await page.locator("[data-stand='shown'] canvas").boundingBox())!;
  await page.mouse.move(box.x + from, box.y + 100);
  await page.mouse.down();
  for (let i = 1; i <= 10; i += 1) await page.mouse.move(box.x + from + ((to - from) * i) / 10, box.y + 100);
  await page.mouse.up();
}

test("at its own size a drag moves the picture for who looks on, and is the desktop's for who works", async ({ page, server }) => {
  const sockets: WebSocketRoute[] = [];
  await page.routeWebSocket(/desktop\/websocket/, (socket) => {
    sockets.push(socket);
    socket.connectToServer();
  });
  const id = await server.schedule({
    desktop: true,
    steps: [
      { tool: "shell", command: xterm("-bg '#ff0000' -fg '#ff0000' -b 0 -geometry 33x70+0+0") },
      { tool: "shell", command: "setsid xev -geometry 1000x800+250+0 -event button -event mouse > seen.txt 2>&1 & until xdotool search --name 'Event Tester'; do sleep 0.1; done" },
      until("enough.txt"),
    ],
  });
  await openDesktop(page, server, id);
  await expect(page.locator("[data-step='3']")).toBeVisible();
  const canvas = page.locator("[data-stand='shown'] canvas");
  const width = () => canvas.evaluate((canvas) => (canvas as HTMLCanvasElement).width);
  const RED = [255, 0, 0];
  expect(await width()).toBe(1280);
  const shownAs = (await canvas.boundingBox())!.width;
  expect(shownAs).toBeLessThan(1280);
  await expect.poll(() => colourAt(page, 80, 100)).toEqual(RED);

  await page.getByRole("button", { name: "100 %" }).click();
  await expect.poll(width).toBeLessThan(1280);
  await drag(page, 400, 50);
  await expect.poll(() => colourAt(page, 80, 100)).not.toEqual(RED);
  await drag(page, 50, 400);
  await expect.poll(() => colourAt(page, 80, 100)).toEqual(RED);

  // A connection that is made again is looked at in the same way.
  await sockets.at(-1)!.close();
  await expect.poll(() => sockets.length).toBe(2);
  await expect(canvas).toBeVisible();
  expect(await width()).toBeLessThan(1280);
  await drag(page, 400, 50);
  await expect.poll(() => colourAt(page, 80, 100)).not.toEqual(RED);

  // In hand, the same drag is the desktop's, and the picture stays where it is.
  const seen = async () => (await fetch(`${server.url}/jobs/${id}/files/seen.txt`)).text();
  expect(await seen()).not.toContain("ButtonPress");
  await page.getByRole("button", { name: "Take over" }).click();
  await expect(page.getByText("Yours now; the job waits")).toBeVisible();
  const before = await colourAt(page, 80, 100);
  await drag(page, 50, 400);
  await expect.poll(seen).toMatch(/ButtonPress[^]*MotionNotify[^]*state 0x100[^]*ButtonRelease/);
  expect(await colourAt(page, 80, 100)).toEqual(before);

  await page.getByRole("button", { name: "Fit" }).click();
  await expect.poll(width).toBe(1280);
  expect((await canvas.boundingBox())!.width).toBe(shownAs);
  await server.put(id, "enough.txt");
});

/** A line to a server that carries so many bytes a second towards whoever called, for each of their connections. */
class Line {
  bytesPerSecond = Infinity;
  readonly #listener = createServer((caller) => void this.#carry(caller));
  readonly #port: number;

  constructor(server: Server) {
    this.#port = Number(new URL(server.url).port);
  }

  async open(): Promise<string> {
    this.#listener.listen(0, "127.0.0.1");
    await once(this.#listener, "listening");
    return `http://localhost:${(this.#listener.address() as { port: number }).port}`;
  }

  async #carry(caller: Socket): Promise<void> {
    const server = connect(this.#port, "127.0.0.1");
    for (const [end, other] of [[caller, server], [server, caller]] as const) {
      end.on("error", () => other.destroy());
      end.on("close", () => other.destroy());
    }
    caller.pipe(server);
    try {
      // Nothing is read ahead, so that the line is as full for the server as it is for the caller.
      for await (const piece of server as AsyncIterable<Buffer>) {
        for (let at = 0; at < piece.length; at += 4096) {
          const part = piece.subarray(at, at + 4096);
          if (Number.isFinite(this.bytesPerSecond)) await new Promise((next) => setTimeout(next, (part.length / this.bytesPerSecond) * 1000));
          if (!caller.write(part)) await once(caller, "drain");
        }
      }
      caller.end();
    } catch {
      // One of them hung up.
      caller.destroy();
    }
  }

  close(): void {
    this.#listener.close();
  }
}

test("pictures get smaller on a line that they fill, and better again when there is room", async ({ page, server }) => {
  test.setTimeout(180_000);
  /** What the page last asked for, on the wire. */
  let quality = -1;
  page.on("websocket", (socket) =>
    socket.on("framesent", ({ payload }) => {
      if (typeof payload === "string" || payload[0] !== 2) return;
      for (let at = 4; at + 4 <= payload.length; at += 4) {
        const encoding = payload.readInt32BE(at);
        if (encoding >= -32 && encoding <= -23) quality = encoding + 32;
      }
    }),
  );
  const id = await server.schedule({
    desktop: true,
    steps: [
      { tool: "shell", command: xterm("-geometry 200x60+0+0 -e 'until test -e still.txt; do head -c 6000 /dev/urandom | base64 -w 0; sleep 0.05; done; sleep 1h'") },
      until("enough.txt"),
    ],
  });
  const line = new Line(server);
  await page.goto(`${await line.open()}/watch/${id}#desktop`);
  const desktop = page.locator("[data-stand='shown']");
  await expect(desktop.locator("canvas")).toBeVisible();
  expect(quality).toBe(8);
  line.bytesPerSecond = 60_000;
  await expect(desktop).toHaveAttribute("data-pace", /[2-4]/, { timeout: 60_000 });
  expect(quality).toBeLessThanOrEqual(4);

  line.bytesPerSecond = Infinity;
  await server.put(id, "still.txt");
  await expect(desktop).toHaveAttribute("data-pace", "0", { timeout: 90_000 });
  await expect.poll(() => quality).toBe(8);

  // What somebody chose holds, whatever the line is.
  await page.getByLabel("Picture quality").selectOption("fast");
  await expect.poll(() => quality).toBe(2);
  await server.put(id, "enough.txt");
  line.close();
});
