// People: who is let in, whose jobs they see, what a link shows to whom.

import type { Browser, Page } from "@playwright/test";
import { expect, expectAccessible, patient, test } from "../fixtures";
import { Server } from "../server";

const TOKEN = "open-sesame-open-sesame";
const HELLO = { steps: [{ tool: "shell", command: "echo hello > made.txt; echo said" }] };

async function withServer(act: (server: Server) => Promise<void>): Promise<void> {
  const server = await Server.start({ BELLGLASS_TOKEN: TOKEN });
  try {
    await act(server);
  } finally {
    await server.remove();
  }
}

async function logIn(page: Page, server: Server, token: string): Promise<void> {
  await page.goto(server.url);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await expect(page.getByRole("heading", { name: "Jobs" })).toBeVisible();
}

/** A browser of somebody else. */
async function another(browser: Browser): Promise<Page> {
  return (await browser.newContext()).newPage();
}

test("two users see their own jobs and not each other's", async ({ page, browser }) => {
  await withServer(async (server) => {
    const [ada, bob] = [await server.token("ada"), await server.token("bob")];
    const adas = await server.schedule({ ...HELLO, name: "Ada's job" }, ada.token);
    await server.ended(adas);
    await logIn(page, server, ada.token);
    await expect(page.getByText("Ada's job")).toBeVisible();
    await expect(page.getByTitle("Logged in as ada, user")).toBeVisible();
    await expectAccessible(page);

    const other = await another(browser);
    await logIn(other, server, bob.token);
    await expect(other.getByText("Nothing under the glass yet")).toBeVisible();
    await other.goto(`${server.url}/watch/${adas}`);
    await expect(other.getByText("There is no such job")).toBeVisible();

    // What one of them schedules appears on the page of nobody else, though both listen.
    await page.goto(server.url);
    await server.schedule({ ...HELLO, name: "Bob's job" }, bob.token);
    await other.goto(server.url);
    await expect(other.getByText("Bob's job")).toBeVisible();
    await server.schedule({ ...HELLO, name: "Ada's next job" }, ada.token);
    await expect(page.getByText("Ada's next job")).toBeVisible();
    await expect(page.getByText("Bob's job")).toHaveCount(0);
    await expect(other.getByText("Ada's")).toHaveCount(0);

    // Whoever runs the server sees both, and whose they are.
    const admin = await another(browser);
    await logIn(admin, server, TOKEN);
    await expect(admin.locator("[data-job]", { hasText: "Bob's job" })).toContainText("bob");
    await expect(admin.locator("[data-job]", { hasText: "Ada's job" })).toContainText("ada");
  });
});

test("a revoked token takes the page with it", async ({ page }) => {
  await withServer(async (server) => {
    const ada = await server.token("ada");
    await logIn(page, server, ada.token);
    await server.call("DELETE", `/tokens/${ada.id}`);
    await page.reload();
    await expect(page.getByRole("heading", { name: "Log in" })).toBeVisible();
    await page.getByLabel("Token").fill(ada.token);
    await page.keyboard.press("Enter");
    await expect(page.getByRole("alert")).toContainText("does not let you in");
    await expectAccessible(page);
  });
});

test("a viewer looks and is offered nothing else", async ({ page }) => {
  await withServer(async (server) => {
    const [ada, viewer] = [await server.token("ada"), await server.token("ada", "viewer")];
    const id = await server.schedule(patient("to look at"), ada.token);
    await logIn(page, server, viewer.token);
    await expect(page.getByText("This token lets you look")).toBeVisible();
    await page.goto(`${server.url}/watch/${id}`);
    await expect(page.locator("[data-output='2']")).toContainText("tick");
    await expect(page.locator("[data-fact='view-only']")).toBeVisible();
    for (const name of ["Cancel", "Pause", "Share", "Upload", "Fork", "Fork from here"]) {
      await expect(page.getByRole("button", { name, exact: true })).toHaveCount(0);
    }
  });
});

test("a link shows a job to whoever has it, until it is taken back", async ({ page, browser }) => {
  await withServer(async (server) => {
    const ada = await server.token("ada");
    const id = await server.schedule(patient("to be shown"), ada.token);
    await logIn(page, server, ada.token);
    await page.goto(`${server.url}/watch/${id}`);
    await page.getByRole("button", { name: "Share" }).click();
    await page.getByLabel("They may download the result").uncheck();
    await page.getByRole("button", { name: "Make a link" }).click();
    const link = await page.getByLabel("The link", { exact: true }).inputValue();
    expect(link).toContain(`${server.url}/share/`);
    await expectAccessible(page);

    const guest = await another(browser);
    await guest.goto(link);
    await expect(guest).toHaveURL(`${server.url}/watch/${id}?shared`);
    await expect(guest.locator("[data-output='2']")).toContainText("tick");
    await expect(guest.locator("[data-fact='view-only']")).toBeVisible();
    await guest.getByRole("tab", { name: "Files" }).click();
    await expect(guest.locator("[data-path='first.txt']")).toBeVisible();
    // What a step changed may hold what was taken out since: that there was something is all they see.
    await expect(guest.locator("[data-step='1']")).toContainText("Files: 1 added");
    await expect(guest.locator("[data-step='1'] details")).toHaveCount(0);
    await expect(guest.getByLabel("What to see")).toHaveCount(0);
    for (const name of ["Cancel", "Pause", "Share", "Upload", "Change", "Fork", "Fork from here"]) {
      await expect(guest.getByRole("button", { name, exact: true })).toHaveCount(0);
    }
    await expectAccessible(guest);
    const refused = await guest.evaluate(async (id) => (await fetch(`/jobs/${id}/cancel`, { method: "POST" })).status, id);
    expect(refused).toBe(403);
    expect(await guest.evaluate(async () => (await fetch("/jobs")).status)).toBe(401);
    expect(await guest.evaluate(() => document.cookie)).toBe("");

    await page.getByRole("button", { name: "Take back all links" }).click();
    await expect(page.getByText("No link opens this job any more.")).toBeVisible();
    await guest.goto(link);
    await expect(guest.getByText("This link opens nothing any more")).toBeVisible();
    await expectAccessible(guest);
  });
});

test("what is left of a desktop and of kernels is for all who may read files", async ({ page, browser }) => {
  await withServer(async (server) => {
    const [ada, viewer] = [await server.token("ada"), await server.token("ada", "viewer")];
    const steps = [{ tool: "computer", action: "screenshot" }, { tool: "python", code: "6 * 7" }];
    const waiting = { tool: "shell", command: "until test -e enough.txt; do sleep 0.1; done" };
    const id = await server.schedule({ image: "desktop", steps: [...steps, waiting] }, ada.token);
    await logIn(page, server, viewer.token);
    await page.goto(`${server.url}/watch/${id}`);
    await expect(page.locator("[data-step='3']")).toBeVisible();
    // What runs can be typed and clicked into, so it is not for those who only look.
    await expect(page.getByRole("tab")).toHaveText([/Files/, /Network/, /Log/]);
    await server.call("POST", `/jobs/${id}/cancel`);
    await expect(page.getByRole("tab")).toHaveText([/Desktop/, /Files/, /Notebook/, /Network/, /Log/]);
    await page.getByRole("tab", { name: "Desktop" }).click();
    await expect(page.getByRole("img", { name: "desktop.png" })).toBeVisible();
    await page.getByRole("tab", { name: "Notebook" }).click();
    await expect(page.locator("[data-cell='1']")).toContainText("42");

    const { url } = (await server.call("POST", `/jobs/${id}/share`, { expires_in: 3600, files: false, output: false })) as { url: string };
    const guest = await another(browser);
    await guest.goto(new URL(url, server.url).href);
    await expect(guest.getByRole("tab")).toHaveText([/Network/, /Log/]);
    // The picture that a step took is part of what happened.
    await expect(guest.locator("[data-picture='1']")).toBeVisible();
  });
});
