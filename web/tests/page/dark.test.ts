// Everything that is seen seldom, in the dark as in the light: dialogs, memories, and the pages that say no.

import type { Page } from "@playwright/test";
import { expect, expectAccessible, patient, test, until } from "../fixtures";

async function expectAccessibleInBoth(page: Page): Promise<void> {
  for (const colorScheme of ["dark", "light"] as const) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
}

test("dialogs", async ({ page, server }) => {
  const id = await server.schedule(patient("with dialogs"));
  await page.goto(`${server.url}/watch/${id}`);
  await expect(page.locator("[data-output='2']")).toContainText("tick");
  for (const [button, title] of [["Share", "Share this job"], ["Fork", "Fork this job"], ["Cancel", "Cancel this job?"], [/namespace/, "What holds in this sandbox"]] as const) {
    await page.locator("main header").getByRole("button", { name: button }).click();
    await expect(page.getByRole("dialog", { name: title })).toBeVisible();
    await expectAccessibleInBoth(page);
    await page.keyboard.press("Escape");
    await expect(page.getByRole("dialog")).toHaveCount(0);
  }
});

test("memories", async ({ page, server }) => {
  await page.goto(`${server.url}/memory`);
  await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  await expectAccessibleInBoth(page);
  const { id } = (await server.call("POST", "/memories", { project: "garden", text: "Water the bells." })) as { id: number };
  await page.reload();
  await expect(page.getByText("Water the bells.")).toBeVisible();
  await expectAccessibleInBoth(page);
  await server.call("DELETE", `/memories/${id}`);
});

test("an address where nothing is", async ({ page, server }) => {
  await page.goto(server.url);
  await page.evaluate(() => {
    history.pushState(null, "", "/nothing/here");
    dispatchEvent(new PopStateEvent("popstate"));
  });
  await expect(page.getByText("Nothing is at this address")).toBeVisible();
  await expectAccessibleInBoth(page);
});

test("a job that is not there", async ({ page, server }) => {
  await page.goto(`${server.url}/watch/0190b3c4-0000-7000-8000-000000000000`);
  await expect(page.getByText("There is no such job")).toBeVisible();
  await expectAccessibleInBoth(page);
});

test("an app that is not there, and one that this browser was not let into", async ({ page, server }) => {
  const id = await server.schedule({ steps: [until("enough.txt")] });
  await expect.poll(async () => (await server.job(id)).steps.length).toBe(1);
  await page.goto(`${server.url}/jobs/${id}/ports/8129/`);
  await expect(page.getByRole("heading", { name: "Nothing listens here" })).toBeVisible();
  await expectAccessibleInBoth(page);
  await page.goto(`http://${id}-8130.localhost:${new URL(server.url).port}/`);
  await expect(page.getByRole("heading", { name: "Open this app from its job" })).toBeVisible();
  await expectAccessibleInBoth(page);
  await server.put(id, "enough.txt");
});
