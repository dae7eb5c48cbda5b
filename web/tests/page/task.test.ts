// A task: what a model says and plans is seen, it is answered, paused and resumed. The model's words
// come from the recordings of the examples; all that it does is done in a real sandbox.

import { readdirSync } from "node:fs";
import { resolve } from "node:path";
import { WORDS } from "../../src/home/example_words";
import { expect, expectAccessible, patient, test } from "../fixtures";
import { Server } from "../server";

const examples = resolve(import.meta.dirname, "../../../examples");
const withRecordings = { BELLGLASS_RECORDINGS: resolve(examples, "recordings") };
const config = '[model]\ndefault = "replay/fix-failing-test"\n';

test("every example of the folder is offered", () => {
  const files = readdirSync(examples).filter((file) => file.endsWith(".json"));
  expect(files.map((file) => file.replace(".json", "")).sort()).toEqual(Object.keys(WORDS).sort());
});

test("a task runs from one click to its summary", async ({ page }) => {
  const server = await Server.start(withRecordings, config);
  try {
    await page.goto(server.url);
    await expect(page.getByRole("button", { name: "Task", exact: true })).toHaveAttribute("aria-pressed", "true");
    await page.getByText("Options", { exact: true }).click();
    await expect(page.getByLabel("Model", { exact: true })).toHaveAttribute("placeholder", "replay/fix-failing-test");
    await expectAccessible(page);
    await page.getByRole("button", { name: /Fix a failing test/ }).click();
    await expect(page.locator("[data-kind='said']").first()).toBeVisible();
    await expect(page.locator("main header [data-status='completed']").first()).toBeVisible();
    await expect(page.locator("[data-kind='summary']")).toBeVisible();
    const plan = page.locator("[data-kind='plan'] li");
    await expect(plan.first()).toHaveText(/^done:/);
    expect(await plan.count()).toBeGreaterThan(1);
    await expect(page.getByLabel("Message to the model")).toHaveCount(0);
    await expectAccessible(page);
  } finally {
    await server.remove();
  }
});

test("a job is paused and goes on when it is resumed", async ({ page, server }) => {
  const id = await server.schedule(patient("with a break"));
  await page.goto(`${server.url}/watch/${id}`);
  await expect(page.locator("[data-output='2']")).toContainText("tick");
  await page.getByRole("button", { name: "Pause" }).click();
  await expect(page.locator("main header [data-status='paused']").first()).toBeVisible();
  await server.put(id, "enough.txt");
  // What is under way is finished; the next step waits.
  await expect(page.locator("[data-step='2'] [data-status='succeeded']")).toBeVisible();
  await expect(page.locator("[data-step='3']")).toHaveCount(0);
  await page.getByRole("button", { name: "Resume" }).click();
  await expect(page.locator("[data-output='3']")).toContainText("last");
  await expect(page.locator("main header [data-status='completed']").first()).toBeVisible();
});
