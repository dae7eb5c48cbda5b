// Notebooks: JupyterLab with the job's own kernels while it runs, and what it left afterwards.

import { expect, expectAccessible, test } from "../fixtures";

test("a person's cell and the job's steps share a kernel", async ({ page, server }) => {
  test.setTimeout(240_000);
  const id = await server.schedule({
    image: "desktop",
    steps: [
      { tool: "python", code: "answer = 6 * 7" },
      { tool: "shell", command: "until test -e enough.txt; do sleep 0.2; done" },
      { tool: "python", code: "print('the person said', said)" },
    ],
  });
  await page.goto(`${server.url}/watch/${id}#notebook`);
  const lab = page.frameLocator("iframe[title='JupyterLab']");
  await lab.locator(".jp-LauncherCard[data-category='Notebook'][title='Python']").click({ timeout: 120_000 });
  await expect(lab.getByText("Python | Idle")).toBeVisible({ timeout: 60_000 });
  // What JupyterLab shows is its own; what is around it is ours.
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
  const cell = lab.locator(".jp-Notebook .jp-Cell").first().locator(".cm-content");
  await cell.click();
  await page.keyboard.type("said = 'hello'; answer");
  await page.keyboard.press("Shift+Enter");
  await expect(lab.locator(".jp-OutputArea-output").first()).toContainText("42", { timeout: 60_000 });

  // No address that a person could pass on lets anybody in.
  for (const frame of page.frames()) expect(frame.url()).not.toMatch(/token|ticket/);

  await server.put(id, "enough.txt");
  await expect(page.locator("[data-output='3']")).toContainText("the person said hello", { timeout: 60_000 });
});

test("JupyterLab opens in a tab of its own too", async ({ page, server }) => {
  test.setTimeout(240_000);
  const id = await server.schedule({
    image: "desktop",
    steps: [{ tool: "shell", command: "until test -e enough.txt; do sleep 0.2; done" }],
  });
  await page.goto(`${server.url}/watch/${id}#notebook`);
  const opened = page.context().waitForEvent("page");
  await page.getByRole("link", { name: "Open in a tab of its own" }).click();
  const lab = await opened;
  await expect(lab.locator(".jp-LauncherCard[data-category='Notebook'][title='Python']")).toBeVisible({ timeout: 120_000 });
  expect(lab.url()).not.toMatch(/token|ticket/);
  await server.put(id, "enough.txt");
  await server.ended(id);
});

test("the notebook that a job left is shown as text and pictures", async ({ page, server }) => {
  const figure = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()";
  const hostile = "from IPython.display import HTML, display\ndisplay(HTML('<img src=x onerror=alert(1)><b id=evil>bold</b>'))\nprint('<i>printed</i>')";
  const id = await server.schedule({
    steps: [
      { tool: "python", code: figure },
      { tool: "python", code: hostile },
      { tool: "python", code: "1 / 0" },
      { tool: "typescript", code: "const x: number = 6; x * 7" },
    ],
  });
  await server.ended(id);
  await page.goto(`${server.url}/watch/${id}#notebook`);
  await expect(page.locator("[data-cell='1'] img")).toBeVisible();
  await expect(page.locator("[data-cell='2']")).toContainText("<i>printed</i>");
  await expect(page.locator("[data-cell='3']")).toContainText("ZeroDivisionError");
  await expect(page.locator("#evil")).toHaveCount(0);
  await expectAccessible(page);
  await page.getByRole("button", { name: "TypeScript", exact: true }).click();
  await expect(page.locator("[data-cell='1']")).toContainText("42");
});

for (const asked of [{ desktop: true }, { image: "desktop" }]) {
  test(`what the screen showed is there when the desktop is gone, of a job with ${JSON.stringify(asked)}`, async ({ page, server }) => {
    const id = await server.schedule({ ...asked, steps: [{ tool: "computer", action: "screenshot" }] });
    await server.ended(id);
    await page.goto(`${server.url}/watch/${id}#desktop`);
    const last = page.getByRole("img", { name: "desktop.png" });
    await expect(last).toBeVisible();
    expect(await last.evaluate((image) => (image as HTMLImageElement).naturalWidth)).toBe(1280);
    // And what it showed at a step is beside the step.
    const picture = page.locator("[data-step='1'] [data-picture='1']");
    await expect(picture).toBeVisible();
    expect(await picture.evaluate((image) => (image as HTMLImageElement).naturalWidth)).toBeGreaterThan(600);
    for (const colorScheme of ["light", "dark"] as const) {
      await page.emulateMedia({ colorScheme });
      await expectAccessible(page);
    }
  });
}

test("a desktop that was never started left no picture", async ({ page, server }) => {
  const id = await server.schedule({ image: "desktop", steps: [{ tool: "shell", command: "true" }] });
  await server.ended(id);
  await page.goto(`${server.url}/watch/${id}#desktop`);
  await expect(page.getByText("The desktop went with the sandbox")).toBeVisible();
  await expectAccessible(page);
});
