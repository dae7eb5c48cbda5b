// A job's page: what happens is seen, missed by nothing; files, network, log, and the end.

import { readFile } from "node:fs/promises";
import type { Page } from "@playwright/test";
import { expect, expectAccessible, patient, test } from "../fixtures";
import type { Server } from "../server";

/** Every event of the log is on the page, in its order, once. */
async function expectWholeLog(page: Page, server: Server, id: string): Promise<void> {
  const { last_seq } = await server.job(id);
  await page.getByRole("tab", { name: "Log" }).click();
  await expect(page.getByLabel("Search the log")).toHaveAttribute("placeholder", `Search ${last_seq} events`);
  const earlier = page.getByRole("button", { name: /earlier event/ });
  if (await earlier.isVisible()) await earlier.click();
  const seen = await page.locator("[data-seq]").evaluateAll((rows) => rows.map((row) => Number((row as HTMLElement).dataset["seq"])));
  expect(seen).toEqual(Array.from({ length: last_seq }, (_, i) => i + 1));
}

const header = (page: Page) => page.locator("main header").first();

test("events arrive while it runs, and a file that is put in reaches it", async ({ page, server }) => {
  const id = await server.schedule(patient("watched"));
  await page.goto(`${server.url}/watch/${id}`);
  await expect(header(page)).toContainText("Running");
  await expect(page.locator("[data-output='2']")).toContainText("tick");
  await expect(header(page)).toContainText("Live");

  // It is in the list, it can be read, and the job sees it.
  await expect(page.locator("[data-path='first.txt']")).toBeVisible();
  await page.getByLabel("Files to put into the workspace").setInputFiles({ name: "enough.txt", mimeType: "text/plain", buffer: Buffer.from("that will do\n") });
  await page.locator("[data-path='enough.txt']").click();
  await expect(page.locator("[data-file='enough.txt']")).toContainText("that will do");
  await expect(page.locator("[data-output='3']")).toContainText("last");
  await expect(header(page)).toContainText("Completed");

  // After the end the same comes from the ZIP.
  await page.locator("[data-path='first.txt']").click();
  await expect(page.locator("[data-file='first.txt']")).toContainText("first");
  await expect(page.getByRole("button", { name: "Upload" })).toHaveCount(0);
  await expectWholeLog(page, server, id);
});

test("the result is downloaded whole", async ({ page, server }) => {
  const id = await server.schedule({ steps: [{ tool: "write_file", path: "a/b.txt", content: "kept" }] });
  await server.ended(id);
  await page.goto(`${server.url}/watch/${id}`);
  const download = page.waitForEvent("download");
  await header(page).getByRole("link", { name: /Download/ }).click();
  const file = await (await download).path();
  const { result } = (await server.call("GET", `/jobs/${id}`)) as { result: { bytes: number } };
  const zip = await readFile(file);
  expect(zip.length).toBe(result.bytes);
  expect(zip.subarray(0, 2).toString()).toBe("PK");

  await page.locator("[data-path='a']").click();
  await page.locator("[data-path='a/b.txt']").click();
  await expect(page.locator("[data-file='a/b.txt']")).toContainText("kept");
});

test("a file of a running job is deleted when that is confirmed", async ({ page, server }) => {
  const id = await server.schedule(patient("deleting"));
  await page.goto(`${server.url}/watch/${id}#files`);
  await page.locator("[data-path='first.txt']").hover();
  await page.getByRole("button", { name: "Delete first.txt" }).click();
  await page.getByRole("button", { name: "Keep it" }).click();
  await expect(page.locator("[data-path='first.txt']")).toBeVisible();
  await page.getByRole("button", { name: "Delete first.txt" }).click();
  await page.getByRole("button", { name: "Delete it" }).click();
  await expect(page.getByText("The workspace is empty")).toBeVisible();
  await server.call("POST", `/jobs/${id}/cancel`);
});

test("the newest is kept in sight until somebody scrolls up", async ({ page, server }) => {
  const long = Array.from({ length: 6 }, () => ({ tool: "shell", command: "seq 1 15" }));
  const id = await server.schedule({ steps: [...long, ...patient("").steps] });
  await page.goto(`${server.url}/watch/${id}`);
  const story = page.getByRole("region", { name: "Timeline" });
  await expect(page.locator("[data-output='8']")).toContainText("tick");
  await expect(page.locator("[data-step='8']")).toBeInViewport();
  await story.evaluate((element) => element.scrollTo(0, 100));
  await server.put(id, "enough.txt");
  await expect(header(page)).toContainText("Completed");
  await expect(page.locator("[data-step='1']")).toBeInViewport();
  // A job that is over is read from its beginning.
  await page.reload();
  await expect(page.locator("[data-output='9']")).toContainText("last");
  await expect(page.locator("[data-step='1']")).toBeInViewport();
});

test("a job is cancelled, and can be run again", async ({ page, server }) => {
  const id = await server.schedule(patient("unwanted"));
  await page.goto(`${server.url}/watch/${id}`);
  await expect(page.locator("[data-output='2']")).toContainText("tick");
  await header(page).getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Let it go on" }).click();
  await expect(header(page)).toContainText("Running");
  await header(page).getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("button", { name: "Cancel the job" }).click();
  await expect(header(page).locator("[data-status='cancelled']")).toBeVisible();
  await expect(header(page)).toContainText("1 failed");
  await expect(header(page).getByRole("link", { name: /Download/ })).toBeVisible();

  await header(page).getByRole("button", { name: "Run again" }).click();
  await expect(page.getByLabel(/^Tool of step/)).toHaveCount(3);
});

test("a page that is loaded again in the middle misses nothing", async ({ page, server }) => {
  const id = await server.schedule(patient("reloaded"));
  await page.goto(`${server.url}/watch/${id}`);
  await expect(page.locator("[data-output='2']")).toContainText("tick 3");
  await page.reload();
  await expect(page.locator("[data-output='2']")).toContainText(/tick \d/);
  await server.put(id, "enough.txt");
  await expect(header(page)).toContainText("Completed");
  await expectWholeLog(page, server, id);
});

test("what is refused at the way out is seen, and the policy is changed while it runs", async ({ page, server }) => {
  const id = await server.schedule({
    name: "reaching out",
    network: { allow: ["allowed.invalid:443"] },
    steps: [
      { tool: "shell", command: "curl -sS --max-time 5 https://refused.invalid/; curl -sS --max-time 5 https://allowed.invalid/; true" },
      { tool: "shell", command: "for i in $(seq 1200); do test -e enough.txt && break; sleep 0.25; done" },
    ],
  });
  await page.goto(`${server.url}/watch/${id}#network`);
  await expect(page.locator("[data-host='refused.invalid']")).toContainText("Refused by policy");
  await expect(page.locator("[data-host='allowed.invalid']")).toContainText(/Not resolved|No answer/);
  await expect(page.locator("[data-policy]")).toHaveText("allowed.invalid:443");
  await page.getByRole("button", { name: "Change", exact: true }).click();
  await expectAccessible(page);
  await page.getByLabel("Hosts, one to a line").fill("not a host!");
  await page.getByRole("button", { name: "Apply" }).click();
  await expect(page.getByRole("alert")).toContainText("not a host");
  await page.getByLabel("Package registries").check();
  await page.getByRole("button", { name: "Apply" }).click();
  await expect(page.locator("[data-policy]")).toHaveText("package registries");
  await expect(page.locator("[data-kind='network']")).toContainText("May now reach package registries");
  await server.put(id, "enough.txt");
  await expect(header(page)).toContainText("Completed");
});

test("the isolation badge opens the sandbox's report", async ({ page, server }) => {
  const id = await server.schedule({ steps: [{ tool: "shell", command: "true" }] });
  await server.ended(id);
  await page.goto(`${server.url}/watch/${id}`);
  await header(page).getByRole("button", { name: /namespace/ }).click();
  const report = page.getByRole("dialog", { name: "What holds in this sandbox" });
  const { sandbox } = (await server.call("GET", `/jobs/${id}`)) as { sandbox: { checks: { subject: string }[] } };
  await expect(report.locator("tbody tr")).toHaveCount(sandbox.checks.length);
  expect(sandbox.checks.length).toBeGreaterThan(5);
  await expectAccessible(page);
  await page.keyboard.press("Escape");
  await expect(report).toBeHidden();
});

test("long output is folded, and the rest of very long output can be had", async ({ page, server }) => {
  const id = await server.schedule({ steps: [{ tool: "shell", command: "seq 1 200" }, { tool: "shell", command: "seq 1 60000" }] });
  await server.ended(id);
  await page.goto(`${server.url}/watch/${id}`);
  const first = page.locator("[data-output='1']");
  await expect(first.locator(".line")).toHaveCount(16);
  await first.getByRole("button", { name: "Show all 200 lines" }).click();
  await expect(first.locator(".line")).toHaveCount(200);
  const link = page.locator("[data-output='2']").getByRole("link", { name: /^All/ });
  const whole = await (await fetch(`${server.url}${await link.getAttribute("href")}`)).text();
  expect(whole.trim().split("\n")).toHaveLength(60000);
});

test("a figure that a step draws is shown", async ({ page, server }) => {
  // The smallest picture there is: one dark pixel.
  const png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==";
  const id = await server.schedule({
    steps: [{ tool: "write_file", path: "dot.png", content: png, encoding: "base64" }, { tool: "read_file", path: "dot.png" }],
  });
  await server.ended(id);
  await page.goto(`${server.url}/watch/${id}`);
  const picture = page.locator("[data-picture='2']");
  await expect(picture).toBeVisible();
  expect(await picture.evaluate((image) => (image as HTMLImageElement).naturalWidth)).toBe(1);
  await page.locator("[data-path='dot.png']").click();
  await expect(page.getByRole("img", { name: "dot.png" })).toBeVisible();
});

test("everything can be reached by keyboard, also on a small screen", async ({ page, server }) => {
  const id = await server.schedule({ name: "by hand", steps: [{ tool: "write_file", path: "x.py", content: "def f():\n    return 1\n" }] });
  await server.ended(id);
  await page.setViewportSize({ width: 375, height: 720 });
  await page.goto(`${server.url}/watch/${id}`);
  const tabs = page.getByRole("tab");
  await expect(tabs).toHaveText(["Timeline", "Files", "Terminal", "Apps", "Network", "Log"]);
  await tabs.first().focus();
  await page.keyboard.press("ArrowRight");
  await expect(page.getByRole("tab", { name: "Files" })).toBeFocused();
  await page.locator("[data-path='x.py']").focus();
  await page.keyboard.press("Enter");
  await expect(page.locator("[data-file='x.py'] .h-keyword").first()).toHaveText("def");
  for (const name of ["Timeline", "Files", "Terminal", "Apps", "Network", "Log"]) {
    await page.getByRole("tab", { name }).click();
    for (const colorScheme of ["light", "dark"] as const) {
      await page.emulateMedia({ colorScheme });
      await expectAccessible(page);
    }
    const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    expect(overflow, name).toBe(0);
  }
});

test("a job that does not exist is said to not exist", async ({ page, server }) => {
  await page.goto(`${server.url}/watch/0190b3c4-0000-7000-8000-000000000000`);
  await expect(page.getByText("There is no such job")).toBeVisible();
  await expectAccessible(page);
  await page.goto(`${server.url}/watch/nonsense`);
  await expect(page.getByText("Not a job id", { exact: true })).toBeVisible();
});
