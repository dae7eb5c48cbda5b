// The server dies and comes back under the page, in good order and by force.

import { expect, patient, test, until } from "../fixtures";
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

test("terminals and desktops come back by themselves with the server", async ({ page, browser }) => {
  const server = await Server.start();
  try {
    const id = await server.schedule({
      desktop: true,
      steps: [{ tool: "shell", session: "main", command: "echo kept by the session" }, until("enough.txt")],
    });
    await page.goto(`${server.url}/watch/${id}#terminal`);
    const screen = page.locator(".xterm-rows");
    await expect(page.locator("[data-stand='open']")).toBeVisible();
    await page.keyboard.type("echo typed-$((1 + 1))\n");
    await expect(screen).toContainText("typed-2");
    const [watching, looking] = [await browser.newPage(), await browser.newPage()];
    await watching.goto(`${server.url}/watch/${id}#terminal`);
    await watching.getByLabel("Which terminal").selectOption("main");
    await expect(watching.locator(".xterm-rows")).toContainText("kept by the session");
    await looking.goto(`${server.url}/watch/${id}#desktop`);
    await expect(looking.locator("[data-stand='shown'] canvas")).toBeVisible();

    await server.down("SIGKILL");
    for (const each of [page, watching, looking]) await expect(each.locator("[data-stand='lost']")).toBeVisible();
    await server.up();

    // A shell ends with its connection: what it said stays, and a new one goes on.
    await expect(page.locator("[data-stand='open']")).toBeVisible();
    await expect(screen).toContainText("typed-2");
    await expect(screen).toContainText("this is a new shell");
    await page.keyboard.type("echo typed-$((1 + 2))\n");
    await expect(screen).toContainText("typed-3");
    // A session is the same one.
    await expect(watching.locator("[data-stand='open']")).toBeVisible();
    await expect(watching.getByLabel("Which terminal")).toHaveValue("main");
    await expect(watching.locator(".xterm-rows")).toContainText("kept by the session");
    await expect(looking.locator("[data-stand='shown'] canvas")).toBeVisible();
    await server.put(id, "enough.txt");
    await expect(page.getByText("The terminal went with the sandbox")).toBeVisible();
  } finally {
    await server.remove();
  }
});
