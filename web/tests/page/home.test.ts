// Home: handing in jobs, and the list of them.

import { readFileSync } from "node:fs";
import { expect, expectAccessible, patient, test } from "../fixtures";

const hello = readFileSync(new URL("../../../examples/hello.json", import.meta.url), "utf8");

test("steps that are typed run, and what they say is seen", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByLabel("Command of step 1").fill("echo typed by hand");
  await page.getByRole("button", { name: "Add step" }).click();
  await page.getByLabel("Tool of step 2").selectOption("python");
  await page.getByLabel("Python code of step 2").fill("print(6 * 7)");
  await page.keyboard.press("Control+Enter");

  await expect(page).toHaveURL(/\/watch\/[0-9a-f-]{36}$/);
  await expect(page.locator("[data-output='1']")).toHaveText(/typed by hand/);
  await expect(page.locator("[data-output='2']")).toHaveText(/42/);
  await expect(page.getByRole("banner").or(page.locator("header")).locator("[data-status='completed']").first()).toBeVisible();
  await expect(page.locator("[data-fact='steps']")).toHaveText(/2 of 2 steps/);
});

test("a playbook is taken by paste and by drop", async ({ page, server }) => {
  await page.goto(server.url);
  const box = page.getByRole("region", { name: "New job" });
  for (const way of ["paste", "drop"] as const) {
    await box.evaluate(
      (element, { way, text }) => {
        const data = new DataTransfer();
        if (way === "drop") data.items.add(new File([text], "hello.json", { type: "application/json" }));
        else data.setData("text/plain", text);
        const event = way === "drop" ? new DragEvent("drop", { dataTransfer: data, bubbles: true }) : new ClipboardEvent("paste", { clipboardData: data, bubbles: true });
        element.dispatchEvent(event);
      },
      { way, text: hello },
    );
    await expect(page.getByLabel(/^Tool of step/)).toHaveCount(13);
    await page.reload();
  }
});

test("a file that comes along lies in the workspace", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByLabel("Files for the new job").setInputFiles({ name: "notes é.txt", mimeType: "text/plain", buffer: Buffer.from("brought along") });
  await expect(page.getByText("notes é.txt")).toBeVisible();
  await page.getByLabel("Command of step 1").fill("cat notes*");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator("[data-output='1']")).toHaveText(/brought along/);
});

test("an example starts with one click", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByRole("button", { name: /Say hello/ }).click();
  await expect(page.locator("[data-step='13'] [data-status='succeeded']")).toBeVisible();
  await expect(page.getByRole("link", { name: /Download/ }).first()).toBeVisible();
});

test("what the server refuses is explained where it is wrong", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByLabel("Files for the new job").setInputFiles({
    name: "faulty.json",
    mimeType: "application/json",
    buffer: Buffer.from('[{"tool":"shell","command":"ls"},{"tool":"shell","command":"ls","timeout":"soon"}]'),
  });
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.getByRole("alert")).toContainText("steps[1]");
  await expect(page).toHaveURL(`${server.url}/`);
});

test("a task without a model says how to get one", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByRole("button", { name: "Task", exact: true }).click();
  await expect(page.getByRole("note")).toContainText("OPENAI_API_KEY");
  await page.getByLabel("Task", { exact: true }).fill("Build me something");
  await expect(page.getByRole("button", { name: "Run", exact: true })).toBeDisabled();
});

test("options reach the job", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByLabel("Command of step 1").fill("true");
  await page.getByText("Options", { exact: true }).click();
  await page.getByLabel("Name", { exact: true }).fill("with options");
  await page.getByLabel("Network").selectOption("allow");
  await page.getByLabel("Hosts it may reach").fill("example.com:443\n*.example.org");
  await page.getByLabel(/^Memory/).fill("256MiB");
  await page.getByLabel(/^Time/).fill("90");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.getByRole("heading", { name: "with options" })).toBeVisible();
  const id = page.url().split("/").at(-1) ?? "";
  const { spec } = (await server.job(id)) as unknown as { spec: Record<string, unknown> };
  expect(spec).toMatchObject({ name: "with options", network: { allow: ["example.com:443", "*.example.org"] }, limits: { memory: 268435456, time: 90 } });
});

test("the list follows what happens, is searched, filtered and paged", async ({ page, server }) => {
  await page.goto(server.url);
  const running = await server.schedule(patient("needle in the list"));
  const row = page.locator(`[data-job='${running}']`);
  await expect(row.locator("[data-status='running']")).toBeVisible();
  await expect(row).toContainText("1/3 steps");

  await page.getByLabel("Only jobs that are").selectOption("running");
  await page.getByLabel("Search jobs").fill("needle");
  await expect(page.getByRole("list", { name: "Jobs" }).getByRole("link")).toHaveCount(1);
  await server.call("POST", `/jobs/${running}/cancel`);
  await expect(page.getByText("No job fits")).toBeVisible();
  await page.getByLabel("Only jobs that are").selectOption("cancelled");
  await expect(row.locator("[data-status='cancelled']")).toBeVisible();

  await page.getByLabel("Only jobs that are").selectOption("");
  await page.getByLabel("Search jobs").fill("many of them");
  for (let i = 0; i < 27; i += 1) await server.schedule({ name: `many of them ${i}`, steps: [{ tool: "shell", command: "true" }] });
  await expect(page.getByRole("list", { name: "Jobs" }).getByRole("link")).toHaveCount(25);
  await page.getByRole("button", { name: "Show older jobs" }).click();
  await expect(page.getByRole("list", { name: "Jobs" }).getByRole("link")).toHaveCount(27);
  await expect(page.getByRole("button", { name: "Show older jobs" })).toHaveCount(0);
});

test("home can be used by everybody, in both themes and on a small screen", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByText("Options", { exact: true }).click();
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
  await page.setViewportSize({ width: 375, height: 720 });
  await expectAccessible(page);
  const overflow = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  expect(overflow).toBe(0);
});

test("the first load is small, is kept by name, and is all that is loaded", async ({ page, server }) => {
  let sum = 0;
  page.on("response", async (response) => {
    const path = new URL(response.url()).pathname;
    if (path !== "/" && !path.startsWith("/assets/")) return;
    const { responseBodySize, responseHeadersSize } = await response.request().sizes();
    sum += responseBodySize + responseHeadersSize;
    const kept = await response.headerValue("cache-control");
    expect(kept).toBe(path === "/" ? "no-cache" : "public, max-age=31536000, immutable");
    expect(await response.headerValue("content-encoding")).toBe("gzip");
  });
  await page.goto(server.url);
  await expect(page.getByRole("heading", { name: "Jobs" })).toBeVisible();
  expect(sum).toBeGreaterThan(10_000);
  expect(sum).toBeLessThan(100_000);
});
