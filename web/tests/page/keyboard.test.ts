// The page with the Tab key alone: everything is reached, in the order in which it is seen, and dialogs give the
// keyboard back to where they were opened.

import type { Page } from "@playwright/test";
import { expect, patient, test } from "../fixtures";

/** What has the keyboard, by the name that a screen reader says, and whether it can be seen. */
async function focused(page: Page): Promise<{ name: string; seen: boolean }> {
  return page.evaluate(() => {
    const element = document.activeElement as HTMLElement | null;
    if (!element || element === document.body) return { name: "", seen: true };
    const label = (element as HTMLInputElement).labels?.[0]?.textContent;
    const name = element.getAttribute("aria-label") ?? label ?? element.textContent ?? "";
    const { width, height, bottom, right } = element.getBoundingClientRect();
    return { name: name.trim().replace(/\s+/g, " "), seen: width > 4 && height > 4 && bottom > 0 && right > 0 };
  });
}

/** Presses Tab until the page has been gone through once; the names of all that it came to. */
async function walk(page: Page): Promise<string[]> {
  const names: string[] = [];
  for (let i = 0; i < 200; i += 1) {
    await page.keyboard.press("Tab");
    const { name, seen } = await focused(page);
    if (name === "" || (names.length > 0 && name === names[0])) return names;
    expect(seen, `${name} has the keyboard and is not seen`).toBe(true);
    names.push(name);
  }
  throw new Error(`the walk has no end: ${names.join(", ")}`);
}

/** These are among the names, in this order. */
function expectInOrder(names: string[], expected: RegExp[]): void {
  let at = 0;
  for (const each of expected) {
    const found = names.findIndex((name, i) => i >= at && each.test(name));
    expect(found, `${each} in ${JSON.stringify(names)}`).toBeGreaterThanOrEqual(at);
    at = found + 1;
  }
}

async function tabTo(page: Page, name: RegExp): Promise<void> {
  for (let i = 0; i < 200; i += 1) {
    await page.keyboard.press("Tab");
    if (name.test((await focused(page)).name)) return;
  }
  throw new Error(`Tab never comes to ${name}`);
}

test("Tab goes through home from its top to its end", async ({ page, server }) => {
  const id = await server.schedule({ name: "to be come to", steps: [{ tool: "shell", command: "true" }] });
  await server.ended(id);
  await page.goto(server.url);
  await expect(page.locator(`[data-job='${id}']`)).toBeVisible();
  await page.getByText("Options", { exact: true }).click();
  await page.evaluate(() => (document.activeElement as HTMLElement).blur());
  await page.getByLabel("Command of step 1").fill("true");
  await page.evaluate(() => {
    // As on a page that was just opened.
    document.getSelection()?.removeAllRanges();
    (document.activeElement as HTMLElement).blur();
    document.body.tabIndex = -1;
    document.body.focus();
    document.body.removeAttribute("tabindex");
  });
  const names = await walk(page);
  expectInOrder(names, [
    /^Skip to the content/, /^Bellglass, home/, /^Memories/, /^API/, /^Theme/, /^Task/, /^Steps/, /^Playbook or files/, /^Tool of step 1/,
    /^Command of step 1/, /^Add step/, /^Options/, /^Name/, /^Image/, /^Network/, /^Isolation/, /^Memory/, /^Time/, /^Run/, /Say hello/,
    /^Search jobs/, /^Only jobs that are/, /to be come to/, /^API/, /^Licences/,
  ]);
});

test("a job is cancelled, shared and looked into with the keyboard alone", async ({ page, server }) => {
  const id = await server.schedule(patient("by keys"));
  await page.goto(`${server.url}/watch/${id}`);
  await expect(page.locator("[data-output='2']")).toContainText("tick");
  const names = await walk(page);
  expectInOrder(names, [/^Bellglass, home/, /^All jobs/, /Copy the job's id/, /namespace/, /^Pause/, /^Cancel/, /^Fork/, /^Share/, /^Timeline/]);

  // Each dialog keeps the keyboard, and gives it back where it was opened.
  for (const [button, title, inside] of [
    [/^Share$/, "Share this job", /^Holds for/],
    [/^Fork$/, "Fork this job", /^The files as they were/],
    [/^Cancel$/, "Cancel this job?", /^Let it go on$/],
  ] as const) {
    await tabTo(page, button);
    await page.keyboard.press("Enter");
    const dialog = page.getByRole("dialog", { name: title });
    await expect(dialog).toBeVisible();
    await tabTo(page, inside);
    for (let i = 0; i < 12; i += 1) {
      await page.keyboard.press("Tab");
      const outside = await page.evaluate(() => document.activeElement !== document.body && !document.activeElement?.closest("dialog"));
      expect(outside, title).toBe(false);
    }
    await page.keyboard.press("Escape");
    await expect(page.locator("dialog h2")).toHaveCount(0);
    expect((await focused(page)).name).toMatch(button);
  }

  await page.keyboard.press("Enter");
  await expect(page.getByRole("dialog", { name: "Cancel this job?" })).toBeVisible();
  await tabTo(page, /^Cancel the job$/);
  await page.keyboard.press("Enter");
  await expect(page.locator("main header [data-status='cancelled']").first()).toBeVisible();
});
