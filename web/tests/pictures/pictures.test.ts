// The pictures of the README: the main pages at two widths and in both themes, of real jobs.

import { mkdirSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { resolve } from "node:path";
import type { Page } from "@playwright/test";
import { expect, test as base } from "../fixtures";
import { Server } from "../server";

/** A server that plays the examples' recordings in place of a model. */
const test = base.extend<object, { server: Server }>({
  server: [
    async ({}, use) => {
      const recordings = resolve(import.meta.dirname, "../../../examples/recordings");
      const server = await Server.start({ BELLGLASS_RECORDINGS: recordings }, '[model]\ndefault = "replay/fix-failing-test"\n');
      await use(server);
      await server.remove();
    },
    { scope: "worker" },
  ],
});

const folder = resolve(import.meta.dirname, "../../../docs/img");
const WIDTHS = { wide: { width: 1200, height: 760 }, phone: { width: 390, height: 760 } };
const THEMES = ["light", "dark"] as const;

async function example(name: string): Promise<unknown> {
  return JSON.parse(await readFile(resolve(import.meta.dirname, `../../../examples/${name}.json`), "utf8"));
}

async function shoot(page: Page, name: string): Promise<void> {
  mkdirSync(folder, { recursive: true });
  await page.evaluate(() => document.fonts.ready);
  await page.mouse.move(0, 0);
  // WebP, which is a quarter of the same as PNG, is something that only the browser itself can write.
  const browser = await page.context().newCDPSession(page);
  const { data } = await browser.send("Page.captureScreenshot", { format: "webp", quality: 85 });
  await writeFile(resolve(folder, `${name}.webp`), Buffer.from(data, "base64"));
}

async function story(server: Server): Promise<{ running: string; reaching: string; task: string }> {
  const failing = await server.schedule({ name: "Flaky migration", on_error: "stop", steps: [{ tool: "shell", command: "echo 'migrating…'; exit 3" }, { tool: "shell", command: "echo never" }] });
  const hello = await server.schedule(await example("hello"));
  const todo = await server.schedule(await example("todo-app"));
  const reaching = await server.schedule({
    name: "Look around outside",
    network: { allow: ["*.invalid:443"] },
    steps: [{ tool: "shell", command: "for host in files.invalid api.invalid metadata.internal 169.254.169.254; do curl -sS --max-time 4 https://$host/ 2>&1 || true; done" }],
  });
  const task = await server.schedule(await example("fix-failing-test"));
  for (const id of [failing, hello, todo, reaching, task]) await server.ended(id);
  const running = await server.schedule({
    name: "Count primes",
    steps: [
      { tool: "write_file", path: "primes.py", content: "import sys\n\n\ndef primes(limit: int):\n    \"\"\"Sieve of Eratosthenes.\"\"\"\n    marked = bytearray(limit + 1)\n    for n in range(2, limit + 1):\n        if not marked[n]:\n            yield n\n            marked[n * n :: n] = b\"\\x01\" * len(marked[n * n :: n])\n\n\nprint(sum(1 for _ in primes(int(sys.argv[1]))), \"primes below\", sys.argv[1])\n" },
      { tool: "shell", command: "for limit in 1000 10000 100000; do python3 primes.py $limit; done" },
      { tool: "shell", command: "python3 - <<'END'\nimport sys, time\nfor n in range(1, 2000):\n    print(f'\\x1b[36mbatch {n}\\x1b[0m checked, {n * 4096} numbers', flush=True)\n    time.sleep(0.4)\nEND" },
      { tool: "shell", command: "ls -la" },
    ],
  });
  return { running, reaching, task };
}

test("pictures", async ({ page, server }) => {
  test.setTimeout(240_000);
  const { running, reaching, task } = await story(server);
  for (const [width, size] of Object.entries(WIDTHS)) {
    await page.setViewportSize(size);
    for (const theme of THEMES) {
      await page.emulateMedia({ colorScheme: theme });
      await page.goto(server.url);
      await expect(page.locator("[data-status='running']").first()).toBeVisible();
      await shoot(page, `home-${width}-${theme}`);

      await page.goto(`${server.url}/watch/${running}`);
      await expect(page.locator("[data-output='3']")).toContainText("batch");
      if (width === "wide") {
        await page.locator("[data-path='primes.py']").click();
        await expect(page.locator("[data-file] .h-keyword").first()).toBeVisible();
      } else {
        await page.evaluate(() => scrollTo(0, 0));
        await expect(page.locator("[data-step='1'] .h-keyword").first()).toBeVisible();
      }
      await shoot(page, `job-${width}-${theme}`);

      await page.goto(`${server.url}/watch/${task}`);
      if (width === "wide") {
        await page.locator("[data-path='basket.py']").click();
        await expect(page.locator("[data-file] .h-keyword").first()).toBeVisible();
      }
      await expect(page.locator("[data-kind='summary']")).toBeAttached();
      await page.locator("[data-kind='plan']").evaluate((element) => element.scrollIntoView({ block: "start" }));
      await shoot(page, `task-${width}-${theme}`);
    }
  }
  await page.setViewportSize(WIDTHS.wide);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.goto(`${server.url}/watch/${reaching}#network`);
  await expect(page.locator("[data-host='api.invalid']")).toBeVisible();
  await shoot(page, "network-wide-dark");
});

test("a desktop and a terminal", async ({ page, server }) => {
  test.setTimeout(180_000);
  const id = await server.schedule({
    name: "Draw and look",
    desktop: true,
    steps: [
      { tool: "python", code: "import math\nrows = [''.join('#' if abs(math.sin(x / 9) * 8 - y) < 0.6 else ' ' for x in range(86)) for y in range(-9, 10)]\nopen('wave.txt', 'w').write('\\n'.join(rows))" },
      { tool: "shell", command: "setsid xterm -fa DejaVuSansMono -fs 12 -bg '#10201e' -fg '#5fd3c6' -geometry 100x26+110+90 -e 'cat wave.txt; sleep 1h' >/dev/null 2>&1 & until xdotool search --class xterm >/dev/null; do sleep 0.1; done" },
      { tool: "computer", action: "screenshot" },
      { tool: "shell", command: "until test -e enough.txt; do sleep 0.1; done" },
    ],
  });
  for (const [width, size] of Object.entries(WIDTHS)) {
    await page.setViewportSize(size);
    for (const theme of THEMES) {
      await page.emulateMedia({ colorScheme: theme });
      await page.goto(`${server.url}/watch/${id}#desktop`);
      await expect(page.locator("[data-stand='shown'] canvas")).toBeVisible();
      await expect.poll(async () => (await server.job(id)).steps[3]?.status).toBe("running");
      await page.getByRole("button", { name: "Take over" }).click();
      await expect(page.getByText("Yours now")).toBeVisible();
      await shoot(page, `desktop-${width}-${theme}`);
      await page.getByRole("button", { name: "Hand back" }).click();
      await expect(page.getByRole("button", { name: "Take over" })).toBeVisible();
    }
  }
  await page.setViewportSize(WIDTHS.wide);
  await page.emulateMedia({ colorScheme: "dark" });
  await page.getByRole("tab", { name: "Terminal" }).click();
  await expect(page.locator(".xterm-rows")).toContainText("sandbox:/workspace$");
  await page.keyboard.type("ls -la --color; python3 --version; whoami; uname -sr\n");
  await expect(page.locator(".xterm-rows")).toContainText("Linux");
  await shoot(page, "terminal-wide-dark");
  await server.put(id, "enough.txt");
});
