// A task that needs somebody: its wishes are allowed or refused on the page, its questions answered, its
// plan reviewed; what the model is shown can be seen, and what is remembered can be changed.

import { expect, expectAccessible, test } from "../fixtures";
import { call, finish, ScriptedModel } from "../model";
import { Server } from "../server";

const HEADER = "main header";

async function withModel(model: ScriptedModel, act: (server: Server) => Promise<void>): Promise<void> {
  const server = await Server.start({}, model.config);
  try {
    await act(server);
  } finally {
    await server.remove();
    model.stop();
  }
}

test("what a model wants to do is allowed or refused on the page", async ({ page }) => {
  const model = await ScriptedModel.start(
    call("shell", { command: "echo one > one.txt" }),
    call("shell", { command: "rm -rf everything" }),
    finish("One file is made."),
  );
  await withModel(model, async (server) => {
    const id = await server.schedule({ task: "Make files.", approve: ["shell"] });
    await page.goto(`${server.url}/watch/${id}`);
    const box = page.locator("[data-approval]");
    await expect(box).toContainText("echo one > one.txt");
    await expect(page.locator(`${HEADER} [data-status='paused']`).first()).toBeVisible();
    await expectAccessible(page);
    await box.getByRole("button", { name: "Allow" }).click();
    await expect(page.locator("[data-step='1'] [data-status='succeeded']")).toBeVisible();

    await expect(box).toContainText("rm -rf everything");
    await box.getByRole("button", { name: "Refuse…" }).click();
    await box.getByLabel("Why not").fill("It is still needed.");
    await page.keyboard.press("Enter");
    await expect(page.locator(`${HEADER} [data-status='completed']`).first()).toBeVisible();
    await expect(page.locator("[data-kind='asked']").first()).toContainText("Allowed");
    await expect(page.locator("[data-kind='asked']").last()).toContainText("Refused");
    await expect(page.locator("[data-step='2']")).toHaveCount(0);
    expect(model.lastTold).toContain("It is still needed.");
    await expect(page.locator("[data-fact='tokens']")).toContainText("6,060 tokens");

    await page.getByRole("tab", { name: "Context" }).click();
    const context = page.getByRole("region", { name: "What the model is shown" });
    await expect(context).toContainText("Make files.");
    await expect(context).toContainText("rm -rf everything");
    await expectAccessible(page);
  });
});

test("a question is answered on the page", async ({ page }) => {
  const model = await ScriptedModel.start(call("ask_user", { question: "Tabs or spaces?" }), finish("Done with spaces."));
  await withModel(model, async (server) => {
    const id = await server.schedule({ task: "Format it." });
    await page.goto(`${server.url}/watch/${id}`);
    await expect(page.locator("form", { hasText: "Tabs or spaces?" })).toBeVisible();
    await page.getByLabel("Message to the model").fill("Spaces, please.");
    await page.getByRole("button", { name: "Answer" }).click();
    await expect(page.locator("[data-kind='message']")).toContainText("Spaces, please.");
    await expect(page.locator("[data-kind='summary']")).toContainText("Done with spaces.");
    expect(model.lastTold).toContain("Spaces, please.");
  });
});

test("a plan is changed and then approved before anything is done", async ({ page }) => {
  const plan = (...titles: string[]) => call("plan", { steps: titles.map((title) => ({ title, status: "pending" })) });
  const model = await ScriptedModel.start(
    // It looks around first, as models do.
    call("list_files", {}),
    plan("Delete the tests", "Ship it"),
    plan("Run the tests", "Ship it"),
    call("shell", { command: "echo tested" }),
    finish("Shipped."),
  );
  await withModel(model, async (server) => {
    const id = await server.schedule({ task: "Ship it.", plan: "review" });
    await page.goto(`${server.url}/watch/${id}`);
    await expect(page.getByText("The plan above waits for you.")).toBeVisible();
    await expectAccessible(page);
    await page.getByRole("button", { name: "Edit" }).click();
    const box = page.getByLabel("Message to the model");
    await expect(box).toHaveValue("1. Delete the tests\n2. Ship it");
    await box.fill("1. Run the tests\n2. Ship it");
    await page.getByRole("button", { name: "Send the new plan" }).click();
    await expect(page.locator("[data-kind='plan'] li").first()).toContainText("Run the tests");
    expect(model.lastTold).toContain("Work by this plan instead");
    await page.getByRole("button", { name: "Approve the plan" }).click();
    await expect(page.locator("[data-kind='summary']")).toContainText("Shipped.");
  });
});

test("memories are written, found, changed and forgotten", async ({ page, server }) => {
  await page.goto(`${server.url}/memory`);
  await expect(page.getByText("Nothing is remembered yet")).toBeVisible();
  await expectAccessible(page);
  for (const [project, text] of [["shop", "Tests run with make test."], ["blog", "Pages are written in Markdown."]] as const) {
    await page.getByRole("button", { name: "Write one" }).click();
    await page.getByLabel("Project", { exact: true }).fill(project);
    await page.getByLabel("What is worth knowing").fill(text);
    await page.getByRole("button", { name: "Keep it" }).click();
    await expect(page.locator("[data-memory]", { hasText: text })).toBeVisible();
  }
  await expectAccessible(page);
  await page.getByLabel("Search memories").fill("markdown");
  await expect(page.locator("[data-memory]")).toHaveCount(1);
  await page.getByLabel("Search memories").fill("");
  await expect(page.locator("[data-memory]")).toHaveCount(2);

  const row = page.locator("[data-memory]", { hasText: "make test" });
  await row.getByRole("button", { name: "Edit" }).click();
  await page.getByLabel("What is worth knowing").fill("Tests run with just test.");
  await page.getByRole("button", { name: "Save" }).click();
  const changed = page.locator("[data-memory]", { hasText: "just test" });
  await changed.getByRole("button", { name: "Forget" }).click();
  await page.getByRole("button", { name: "Forget it" }).click();
  await expect(page.locator("[data-memory]")).toHaveCount(1);
  await page.reload();
  await expect(page.locator("[data-memory]")).toHaveText(/Markdown/);
});
