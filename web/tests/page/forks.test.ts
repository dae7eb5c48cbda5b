// Earlier files of a job: seen as what a step changed, and gone on from in a new job.

import type { Page } from "@playwright/test";
import { expect, expectAccessible, test } from "../fixtures";
import { call, finish, ScriptedModel } from "../model";
import { Server } from "../server";

const header = (page: Page) => page.locator("main header").first();
const dialog = (page: Page) => page.getByRole("dialog", { name: "Fork this job" });

const PARENT = {
  name: "the parent",
  steps: [
    { tool: "write_file", path: "kept.txt", content: "from the first step\n" },
    { tool: "shell", command: "echo from the second step > kept.txt; echo more > more.txt" },
    { tool: "shell", command: "echo the last step; ls" },
  ],
};

test("a job that is over is forked at a step, with other steps", async ({ page, server }) => {
  const parent = await server.schedule(PARENT);
  await server.ended(parent);
  await page.goto(`${server.url}/watch/${parent}`);
  await page.locator("[data-step='1']").getByRole("button", { name: "Fork from here" }).click();
  await expect(dialog(page).getByLabel("The files as they were")).toHaveValue("1");
  await expectAccessible(page);
  await dialog(page).getByLabel("What to do then").selectOption("steps");
  // Those that are left are there to be changed.
  await expect(dialog(page).getByLabel("Command of step 2")).toHaveValue("echo the last step; ls");
  await dialog(page).getByRole("button", { name: "Remove step 2" }).click();
  await dialog(page).getByLabel("Command of step 1").fill("cat kept.txt; ls");
  await dialog(page).getByLabel("Name of the new job").fill("the child");
  await expectAccessible(page);
  await dialog(page).getByRole("button", { name: "Start the fork" }).click();

  await expect(page.getByRole("heading", { name: "the child" })).toBeVisible();
  expect(page.url()).not.toContain(parent);
  await expect(header(page)).toContainText("Completed");
  await expect(page.locator("[data-output='1']")).toContainText("from the first step");
  await expect(page.locator("[data-output='1']")).not.toContainText("more.txt");
  await expect(page.locator("[data-kind='scheduled']")).toContainText("after step 1 of another job");
  await page.getByRole("link", { name: "another job" }).click();
  await expect(page.getByRole("heading", { name: "the parent" })).toBeVisible();
});

test("a fork that is run again begins where it began, and does the same", async ({ page, server }) => {
  const parent = await server.schedule(PARENT);
  await server.ended(parent);
  const wish = { step: 1, steps: [{ tool: "shell", command: "cat kept.txt" }], name: "the child" };
  const { job_id: child } = (await server.call("POST", `/jobs/${parent}/fork`, wish)) as { job_id: string };
  const { spec } = (await server.ended(child)) as unknown as { spec: unknown };
  await page.goto(`${server.url}/watch/${child}`);
  await page.getByRole("button", { name: "Run again" }).click();
  const again = page.getByRole("dialog", { name: "Make this fork again" });
  await expect(again.getByLabel("Command of step 1")).toHaveValue("cat kept.txt");
  await expectAccessible(page);
  await again.getByRole("button", { name: "Start the fork" }).click();
  await expect(page).not.toHaveURL(new RegExp(child));
  await expect(page.locator("[data-output='1']")).toContainText("from the first step");
  const next = (await server.job(page.url().split("/").at(-1) ?? "")) as unknown as { spec: unknown };
  expect(next.spec).toEqual(spec);
});

test("a fork goes on with the steps that are left, and what is wrong with one is said", async ({ page, server }) => {
  const parent = await server.schedule(PARENT);
  await server.ended(parent);
  await page.goto(`${server.url}/watch/${parent}`);
  await header(page).getByRole("button", { name: "Fork" }).click();
  // Nothing is left after the last step.
  await expect(dialog(page).getByLabel("The files as they were")).toHaveValue("3");
  await expect(dialog(page).getByLabel("What to do then").getByRole("option")).toHaveCount(1);
  await expect(dialog(page).getByRole("button", { name: "Start the fork" })).toBeDisabled();
  await dialog(page).getByLabel("Tool of step 1").selectOption("computer");
  await dialog(page).getByLabel("Arguments of step 1 as JSON").fill('{"action": "somersault"}');
  await dialog(page).getByLabel("Name of the new job").fill("the child");
  await dialog(page).getByRole("button", { name: "Start the fork" }).click();
  await expect(dialog(page).getByRole("alert")).toContainText("steps[0]");

  await dialog(page).getByLabel("The files as they were").selectOption("2");
  await dialog(page).getByLabel("What to do then").selectOption("rest");
  await dialog(page).getByRole("button", { name: "Start the fork" }).click();
  await expect(page.getByRole("heading", { name: "the child" })).toBeVisible();
  await expect(page.locator("[data-output='1']")).toContainText("more.txt");
  await expect(page.locator("[data-fact='steps']")).toContainText("1 of 1 step");
});

test("the model of a task is told something else at a step, and goes on in another job", async ({ page }) => {
  const model = await ScriptedModel.start(
    call("shell", { command: "echo one > one.txt" }), finish("One file is made."),
    call("shell", { command: "cat one.txt; echo two > two.txt" }), finish("Two files are made."),
  );
  const server = await Server.start({}, model.config);
  try {
    const parent = await server.schedule({ task: "Make a file." });
    await server.ended(parent);
    await page.goto(`${server.url}/watch/${parent}`);
    await page.locator("[data-step='1']").getByRole("button", { name: "Fork from here" }).click();
    await dialog(page).getByLabel(/^What the model is told/).fill("Make another one.");
    await dialog(page).getByRole("button", { name: "Start the fork" }).click();
    await expect(page.locator("[data-kind='summary']")).toContainText("Two files are made.");
    expect(page.url()).not.toContain(parent);
    expect(model.lastTold).toContain("Make a file.");
    expect(model.lastTold).toContain("Make another one.");
    await expect(page.locator("[data-step='2']")).toContainText("two.txt");
  } finally {
    await server.remove();
    model.stop();
  }
});

test("what a step did to the files is seen on the timeline and beside them", async ({ page, server }) => {
  const id = await server.schedule(PARENT);
  await server.ended(id);
  await page.goto(`${server.url}/watch/${id}#files`);
  const pane = page.getByRole("tabpanel");
  const choice = pane.getByLabel("What to see");
  // The last step changed nothing, so there is nothing to see of it.
  await expect(choice.getByRole("option")).toHaveText(["As the job left it", "What step 1 changed: write_file", "What step 2 changed: shell"]);
  await choice.selectOption("2");
  const diff = pane.getByRole("region", { name: "What step 2 did to the files" });
  await expect(diff).toContainText("-from the first step");
  await expect(diff).toContainText("+from the second step");
  await expect(diff).toContainText("+more");
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
  await choice.selectOption("1");
  await expect(pane.locator("[data-diff='1']")).toContainText("+from the first step");
  await choice.selectOption("0");
  await expect(pane.locator("[data-path='more.txt']")).toBeVisible();

  await page.locator("[data-step='2']").getByText("Files: 1 added, 1 changed").click();
  await expect(page.locator("[data-step='2'] [data-diff='2']")).toContainText("+more");
  await expectAccessible(page);
});
