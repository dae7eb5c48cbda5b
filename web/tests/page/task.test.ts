// A task: what a model says and plans is seen, it is answered, paused and resumed. The model's words
// come from the recordings of the examples; all that it does is done in a real sandbox.

import { readdirSync } from "node:fs";
import { resolve } from "node:path";
import { WORDS } from "../../src/home/example_words";
import { expect, expectAccessible, patient, test } from "../fixtures";
import { call, finish, ScriptedModel } from "../model";
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

test("a task that is typed runs with the model, the image and the limits that were chosen", async ({ page }) => {
  const model = await ScriptedModel.start(call("shell", { command: "echo made by the model | tee made.txt" }), finish("The file is made."));
  const server = await Server.start({}, model.config);
  try {
    await page.goto(server.url);
    await page.getByLabel("Task", { exact: true }).fill("Make a file, please.");
    await page.getByText("Options", { exact: true }).click();
    await page.getByLabel("Model", { exact: true }).fill("local/another");
    await page.getByLabel("Image").selectOption("desktop");
    await page.getByLabel("Steps, at most").fill("7");
    await page.getByLabel(/^Memory/).fill("768MiB");
    await page.getByLabel(/^Time/).fill("5m");
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await expect(page.locator("[data-kind='summary']")).toContainText("The file is made.");
    await expect(page.locator("[data-output='1']")).toContainText("made by the model");
    await expect(page.locator("main header [data-status='completed']").first()).toBeVisible();
    const { spec } = (await server.job(page.url().split("/").at(-1) ?? "")) as unknown as { spec: Record<string, unknown> };
    expect(spec).toMatchObject({ task: "Make a file, please.", model: "local/another", image: "desktop", budget: { steps: 7 }, limits: { memory: 768 * 2 ** 20, time: 300 } });
    expect(model.lastTold).toContain("Make a file, please.");
    for (const colorScheme of ["dark", "light"] as const) {
      await page.emulateMedia({ colorScheme });
      await expectAccessible(page);
    }
  } finally {
    await server.remove();
    model.stop();
  }
});

test("a task that is run again asks for all that it asked for, and for approval too", async ({ page }) => {
  const model = await ScriptedModel.start(call("shell", { command: "echo unasked > unasked.txt" }), finish("Done."));
  const server = await Server.start({}, model.config);
  try {
    const asked = {
      task: "Be careful.",
      name: "careful",
      approve: ["shell"],
      project: "garden",
      priority: 7,
      plan: "review",
      network: { allow: ["example.com:443"] },
      budget: { steps: 9, tokens: 900_000, time: 600 },
      limits: { processes: 99, memory: "640MiB", cpus: 1.5 },
      mcp: { notes: { command: ["cat"], env: { KEY: "value" } } },
      files: [{ path: "a.txt", content: "a" }],
    };
    const first = await server.schedule(asked);
    await server.call("POST", `/jobs/${first}/cancel`);
    const { spec } = (await server.ended(first)) as unknown as { spec: unknown };
    expect(spec).toMatchObject({ approve: ["shell"], project: "garden", priority: 7 });
    await page.goto(`${server.url}/watch/${first}`);
    await page.getByRole("button", { name: "Run again" }).click();
    await expect(page.getByText("asks before shell")).toBeVisible();
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await expect(page).toHaveURL(/\/watch\//);
    const again = (await server.job(page.url().split("/").at(-1) ?? "")) as unknown as { spec: unknown };
    expect(again.spec).toEqual(spec);
  } finally {
    await server.remove();
    model.stop();
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
