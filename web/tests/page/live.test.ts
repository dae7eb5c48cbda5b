// What is seen and done inside a running sandbox: terminal and apps.

import { expect, expectAccessible, patient, test, until } from "../fixtures";
import { Server } from "../server";

test("what is typed in the terminal is answered there", async ({ page, server }) => {
  const id = await server.schedule({ name: "typed into", steps: [{ tool: "shell", session: "main", command: "echo from the job" }, ...patient("").steps] });
  await page.goto(`${server.url}/watch/${id}#terminal`);
  await expect(page.locator("[data-stand='open']")).toBeVisible();
  await page.keyboard.type("echo sum-$((40 + 2)); pwd\n");
  const screen = page.locator(".xterm-rows");
  await expect(screen).toContainText("sum-42");
  await expect(screen).toContainText("/workspace");
  await expectAccessible(page);

  // Tab is the shell's; this is the page's.
  await page.keyboard.press("Tab");
  await expect(page.getByLabel("Which terminal")).not.toBeFocused();
  await page.keyboard.press("Shift+Escape");
  await expect(page.getByLabel("Which terminal")).toBeFocused();

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

test("on a phone the terminal is typed into and an app is looked at", async ({ page, server }) => {
  const id = await server.schedule({
    name: "in the hand",
    files: [{ path: "site/index.html", content: "<!doctype html><title>App</title><h1>Small app</h1>" }],
    steps: [{ tool: "shell", session: "web", command: "python3 -m http.server 8123 -d site", wait_for: { port: 8123 } }, until("enough.txt")],
  });
  await page.setViewportSize({ width: 375, height: 720 });
  await page.goto(`${server.url}/watch/${id}#terminal`);
  const overflow = () => page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  await expect(page.locator("[data-stand='open']")).toBeVisible();
  await page.keyboard.type("echo sum-$((40 + 2))-$(stty size | cut -d' ' -f2)-\n");
  const screen = page.locator(".xterm-rows");
  await expect(screen).toContainText(/sum-42-\d+-/);
  // As wide as the phone is, not as a terminal usually is.
  const columns = Number(/sum-42-(\d+)-/.exec((await screen.textContent()) ?? "")?.[1]);
  expect(columns).toBeGreaterThan(20);
  expect(columns).toBeLessThan(60);
  await expectAccessible(page);
  expect(await overflow()).toBe(0);

  await page.getByRole("tab", { name: "Apps" }).click();
  await expect(page.frameLocator("iframe").getByRole("heading")).toHaveText("Small app");
  const box = await page.locator("iframe").boundingBox();
  expect(box!.width).toBeGreaterThan(300);
  expect(box!.width).toBeLessThanOrEqual(375);
  expect(box!.height).toBeGreaterThan(200);
  await expectAccessible(page);
  expect(await overflow()).toBe(0);
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
