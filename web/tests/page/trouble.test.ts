// What the page does when the browser or the network does not do its part.

import type { Page } from "@playwright/test";
import { expect, expectAccessible, test } from "../fixtures";
import type { Server } from "../server";

async function endedJob(server: Server): Promise<string> {
  const id = await server.schedule({ name: "in trouble", steps: [{ tool: "shell", command: "true" }] });
  await server.ended(id);
  return id;
}

for (const { what, path, chunk, open, part } of [
  {
    what: "a pane", path: (id: string) => `/watch/${id}`, chunk: "Network",
    open: (page: Page) => page.getByRole("tab", { name: "Network" }).click(),
    part: (page: Page) => page.getByRole("tabpanel", { name: "Network" }).getByText("reach").first(),
  },
  {
    what: "the page of memories", path: () => "/memory", chunk: "Memories", open: async () => {},
    part: (page: Page) => page.getByRole("heading", { level: 1, name: /memor/i }),
  },
  {
    what: "a dialog", path: (id: string) => `/watch/${id}`, chunk: "Fork",
    open: (page: Page) => page.getByRole("button", { name: "Fork", exact: true }).click(),
    part: (page: Page) => page.getByRole("dialog"),
  },
]) {
  test(`${what} that cannot be loaded says so, and can be had again`, async ({ page, server }) => {
    const id = await endedJob(server);
    const ofChunk = new RegExp(`/assets/${chunk}-[^/]*\\.js$`);
    const refused: string[] = [];
    await page.route(ofChunk, (route) => {
      refused.push(route.request().url());
      return route.abort();
    });
    await page.goto(server.url + path(id));
    await open(page);
    await expect(page.getByRole("alert")).toContainText("This part of the page could not be loaded");
    await expect(page.getByRole("alert")).toBeInViewport();
    expect(refused).not.toEqual([]);
    for (const colorScheme of ["dark", "light"] as const) {
      await page.emulateMedia({ colorScheme });
      await expectAccessible(page);
    }
    await page.unroute(ofChunk);
    await Promise.all([page.waitForEvent("load"), page.getByRole("button", { name: "Load the page again" }).click()]);
    await open(page);
    await expect(part(page)).toBeVisible();
    await expect(page.getByText("This part of the page could not be loaded")).toHaveCount(0);
  });
}

test("the id and a link are copied where the browser lends a page no clipboard", async ({ page, server }) => {
  // As on every address that is neither this machine's nor encrypted.
  await page.addInitScript(() => Object.defineProperty(Navigator.prototype, "clipboard", { get: () => undefined }));
  const id = await endedJob(server);
  await page.goto(`${server.url}/watch/${id}`);
  await page.getByRole("button", { name: /Copy the job's id/ }).click();
  await page.getByRole("tab", { name: "Log" }).click();
  await page.getByLabel("Search the log").focus();
  await page.keyboard.press("Control+V");
  await expect(page.getByLabel("Search the log")).toHaveValue(id);

  await page.getByRole("button", { name: "Share" }).click();
  await page.getByRole("button", { name: "Make a link" }).click();
  await page.getByRole("button", { name: "Copy the link" }).click();
  await expect(page.getByText("Copied.")).toBeVisible();
});

test("nothing is said to be copied that is not", async ({ page, server }) => {
  await page.addInitScript(() => {
    Object.defineProperty(Navigator.prototype, "clipboard", { get: () => undefined });
    document.execCommand = () => false;
  });
  const id = await endedJob(server);
  await page.goto(`${server.url}/watch/${id}`);
  await page.getByRole("button", { name: /Copy the job's id/ }).click();
  await expect(page.getByRole("button", { name: new RegExp(id) })).toBeVisible();
  await expect(page.getByText("Copied")).toHaveCount(0);
  await page.getByRole("button", { name: "Share" }).click();
  await page.getByRole("button", { name: "Make a link" }).click();
  await page.getByRole("button", { name: "Copy the link" }).click();
  await expect(page.getByLabel("The link", { exact: true })).toBeFocused();
  await expect(page.getByText("Copied.")).toHaveCount(0);
});
