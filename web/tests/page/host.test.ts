// A server that is called by another name than localhost, and has no names for what sandboxes serve.

import { expect, expectAccessible, test, until } from "../fixtures";
import { Server } from "../server";

test("apps and JupyterLab say what is missing where they have no host name", async ({ playwright, launchOptions }) => {
  const server = await Server.start({}, '[server]\nallowed_hosts = ["bell.example"]\n');
  const rules = "--host-resolver-rules=MAP bell.example 127.0.0.1";
  const browser = await playwright.chromium.launch({ ...launchOptions, args: [...(launchOptions.args ?? []), rules] });
  try {
    const id = await server.schedule({
      image: "desktop",
      steps: [{ tool: "shell", session: "web", command: "python3 -m http.server 8123", wait_for: { port: 8123 } }, until("enough.txt")],
    });
    const page = await browser.newPage();
    await page.goto(`http://bell.example:${new URL(server.url).port}/watch/${id}#apps`);
    for (const pane of ["Apps", "Notebook"]) {
      await page.getByRole("tab", { name: pane }).click();
      await expect(page.getByText("This server has no host names for what sandboxes serve")).toBeVisible();
      await expect(page.getByRole("tabpanel")).toContainText("sandbox_domain");
      await expect(page.locator("iframe")).toHaveCount(0);
      await expectAccessible(page);
    }
  } finally {
    await browser.close();
    await server.remove();
  }
});
