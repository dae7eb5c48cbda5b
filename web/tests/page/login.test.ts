// A server that has a token lets nobody in without it, and a browser that has shown it stays in.

import { expect, expectAccessible, test } from "../fixtures";
import { Server } from "../server";

const TOKEN = "open-sesame-open-sesame";

test("the token is asked for, refused when wrong, and kept as a cookie that no script sees", async ({ page, context }) => {
  const server = await Server.start({ BELLGLASS_TOKEN: TOKEN });
  try {
    const id = await server.schedule({ name: "for members", steps: [{ tool: "shell", command: "echo inside" }] });
    await server.ended(id);
    await page.goto(server.url);
    await expect(page.getByRole("heading", { name: "Log in" })).toBeVisible();
    for (const colorScheme of ["dark", "light"] as const) {
      await page.emulateMedia({ colorScheme });
      await expectAccessible(page);
    }
    await page.getByLabel("Token").fill("open barley");
    await page.getByRole("button", { name: "Log in" }).click();
    await expect(page.getByRole("alert")).toContainText("This token does not let you in.");
    await page.getByLabel("Token").fill(TOKEN);
    await page.keyboard.press("Enter");
    await expect(page.locator(`[data-job='${id}']`)).toBeVisible();

    const [cookie] = await context.cookies();
    expect(cookie).toMatchObject({ httpOnly: true, sameSite: "Strict" });
    expect(cookie?.value).not.toContain("sesame");
    expect(await page.evaluate(() => document.cookie)).toBe("");

    // Event streams and a restarted server know it too.
    await server.down();
    await server.up();
    await page.goto(`${server.url}/watch/${id}`);
    await expect(page.locator("[data-output='1']")).toContainText("inside");

    await page.getByRole("button", { name: "Log out" }).click();
    await expect(page.getByRole("heading", { name: "Log in" })).toBeVisible();
    await page.reload();
    await expect(page.getByRole("heading", { name: "Log in" })).toBeVisible();
    expect(await page.evaluate(async () => (await fetch("/jobs")).status)).toBe(401);
  } finally {
    await server.remove();
  }
});

test("another site cannot use the cookie", async ({ page }) => {
  const server = await Server.start({ BELLGLASS_TOKEN: TOKEN });
  try {
    await page.goto(server.url);
    await page.getByLabel("Token").fill(TOKEN);
    await page.keyboard.press("Enter");
    await expect(page.getByText("Nothing under the glass yet")).toBeVisible();
    const { cookie, port } = await page.evaluate(() => ({ cookie: document.cookie, port: location.port }));
    expect(cookie).toBe("");
    const value = (await page.context().cookies())[0]?.value ?? "";
    expect(value).not.toBe("");
    // What a browser would send for a page of another port of this machine, which shares its cookies.
    const forged = await fetch(`${server.url}/schedule`, {
      method: "POST",
      headers: { "content-type": "application/json", cookie: `bellglass_session=${value}`, origin: `http://localhost:${Number(port) + 1}` },
      body: '{"steps":[{"tool":"shell","command":"true"}]}',
    });
    expect(forged.status).toBe(403);
  } finally {
    await server.remove();
  }
});
