// What is seen and done inside a running sandbox: terminal, desktop, apps.

import type { Page } from "@playwright/test";
import { expect, expectAccessible, patient, test } from "../fixtures";
import type { Server } from "../server";

/** Waits, in the sandbox, until a file of this name is put into the workspace. */
const until = (name: string) => ({ tool: "shell", command: `until test -e ${name}; do sleep 0.1; done` });

const red = "setsid xterm -bg '#ff0000' -fg '#ffffff' -geometry 200x60+0+0 >/dev/null 2>&1 & until xdotool search --class xterm; do sleep 0.1; done";

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

test("what is typed in the terminal is answered there", async ({ page, server }) => {
  const id = await server.schedule({ name: "typed into", steps: [{ tool: "shell", session: "main", command: "echo from the job" }, ...patient("").steps] });
  await page.goto(`${server.url}/watch/${id}#terminal`);
  await expect(page.locator("[data-stand='open']")).toBeVisible();
  await page.keyboard.type("echo sum-$((40 + 2)); pwd\n");
  const screen = page.locator(".xterm-rows");
  await expect(screen).toContainText("sum-42");
  await expect(screen).toContainText("/workspace");
  await expectAccessible(page);

  // A session of the job's is looked at, and stays the job's.
  await page.getByLabel("Which terminal").selectOption("main");
  await expect(screen).toContainText("from the job");
  await page.getByLabel("Which terminal").selectOption("");
  await expect(page.locator("[data-stand='open']")).toBeVisible();
  await page.locator(".xterm").click();
  await page.keyboard.type("exit\n");
  await expect(page.getByText("It has ended.")).toBeVisible();
  await page.getByRole("button", { name: "Open again" }).click();
  await expect(page.locator("[data-stand='open']")).toBeVisible();
  await server.put(id, "enough.txt");
  await expect(page.getByText("The terminal went with the sandbox")).toBeVisible();
});

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
  await expectAccessible(page);

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

/** A page of a sandbox that tries what it can do with the rights of whoever looks at it. */
const MALICIOUS = `<!doctype html><title>Trouble</title><h1>An app of the sandbox</h1><ul id=list></ul><script>
  const api = new URLSearchParams(location.search).get("api");
  const say = (what, how) => { const line = document.createElement("li"); line.textContent = what + ": " + how; list.append(line); };
  const attempt = async (what, act) => { try { say(what, "GOT " + await act()); } catch (error) { say(what, "refused"); } };
  const json = { "content-type": "application/json" };
  const body = JSON.stringify({ steps: [{ tool: "shell", command: "true" }], name: "stolen" });
  (async () => {
    await attempt("read", async () => (await fetch(api + "/jobs", { credentials: "include" })).text());
    await attempt("schedule", async () => (await fetch(api + "/schedule", { method: "POST", credentials: "include", headers: json, body })).status);
    await attempt("schedule plainly", async () => (await fetch(api + "/schedule", { method: "POST", mode: "no-cors", credentials: "include", body })).type === "opaque" ? Promise.reject() : "a page");
    await attempt("socket", () => new Promise((done, fail) => { const s = new WebSocket(api.replace("http", "ws") + location.pathname + "terminal"); s.onopen = () => done("open"); s.onerror = fail; }));
    await attempt("terminal", () => new Promise((done, fail) => { const s = new WebSocket(api.replace("http", "ws") + "/jobs/" + location.hostname.slice(0, 36) + "/terminal"); s.onopen = () => done("open"); s.onerror = fail; }));
    await attempt("parent", async () => parent === window ? Promise.reject() : parent.document.title);
    await attempt("cookies", async () => document.cookie.includes("bellglass") ? document.cookie : Promise.reject());
    await attempt("own origin", async () => (await fetch("/jobs")).ok ? "an answer" : Promise.reject());
    await attempt("frame", () => new Promise((done, fail) => { const f = document.createElement("iframe"); f.src = api + "/"; f.onload = () => { try { done(f.contentDocument.title); } catch { fail(); } }; document.body.append(f); }));
    say("end", "done");
  })();
</script>`;

for (const token of ["", "0123456789abcdef"]) {
  test(`an app is shown, and can do nothing with its viewer's rights ${token ? "behind a login" : "without one"}`, async ({ page }) => {
    const { Server } = await import("../server");
    const server = await Server.start({ BELLGLASS_TOKEN: token });
    const id = await server.schedule({
      name: "serving",
      files: [{ path: "site/index.html", content: MALICIOUS }],
      steps: [{ tool: "shell", session: "web", command: "python3 -m http.server 8123 -d site", wait_for: { port: 8123 } }, until("enough.txt")],
    });
    await page.goto(`${server.url}/watch/${id}#apps`);
    if (token) {
      await page.getByLabel("Token").fill(token);
      await page.getByRole("button", { name: "Log in" }).click();
    }
    const frame = page.frameLocator("iframe");
    await expect(frame.getByRole("heading")).toHaveText("An app of the sandbox");
    await expectAccessible(page);
    await page.getByLabel("Path").fill(`/?api=${encodeURIComponent(server.url)}`);
    await page.getByLabel("Path").press("Enter");
    await expect(frame.getByText("end: done")).toBeVisible();
    const lines = await frame.locator("li").allTextContents();
    expect(lines).toHaveLength(10);
    expect(lines.filter((line) => line.includes("GOT"))).toEqual([]);

    // The same in a tab of its own.
    const tab = page.context().waitForEvent("page");
    await page.getByRole("link", { name: "Open in a tab of its own" }).click();
    const alone = await tab;
    await expect(alone.getByText("end: done")).toBeVisible();
    expect(new URL(alone.url()).hostname).toBe(`${id}-8123.localhost`);
    expect((await alone.locator("li").allTextContents()).filter((line) => line.includes("GOT"))).toEqual([]);
    const { jobs } = (await server.call("GET", "/jobs")) as { jobs: { name: string }[] };
    expect(jobs.map(({ name }) => name)).toEqual(["serving"]);
    await server.remove();
  });
}
