// The server dies and comes back under the page, in good order and by force.

import { expect, patient, test } from "../fixtures";
import { Server } from "../server";

for (const signal of ["SIGTERM", "SIGKILL"] as const) {
  test(`a server that ends by ${signal} and starts again leaves no gap on the page`, async ({ page }) => {
    const server = await Server.start();
    try {
      const id = await server.schedule(patient("outlives the server"));
      await page.goto(`${server.url}/watch/${id}#log`);
      const header = page.locator("main header").first();
      await expect(page.locator("[data-output='2']")).toContainText("tick 2");
      await server.down(signal);
      await expect(header).toContainText("Reconnecting");
      await server.up();
      await expect(header).toContainText("Live");
      await server.put(id, "enough.txt");
      await expect(header).toContainText("Completed");
      await expect(page.locator("[data-output='2']")).toContainText("tick 1");
      const { last_seq } = await server.job(id);
      const seen = await page.locator("[data-seq]").evaluateAll((rows) => rows.map((row) => Number((row as HTMLElement).dataset["seq"])));
      expect(seen).toEqual(Array.from({ length: last_seq }, (_, i) => i + 1).slice(-300));
    } finally {
      await server.remove();
    }
  });
}

test("home says that the server is gone, and goes on when it is back", async ({ page }) => {
  const server = await Server.start();
  try {
    await page.goto(server.url);
    await expect(page.getByText("Nothing under the glass yet")).toBeVisible();
    await server.down();
    await expect(page.getByText("Reconnecting…")).toBeVisible();
    await server.up();
    await expect(page.getByText("Reconnecting…")).toBeHidden();
    const id = await server.schedule({ steps: [{ tool: "shell", command: "true" }] });
    await expect(page.locator(`[data-job='${id}']`)).toBeVisible();
  } finally {
    await server.remove();
  }
});
