// Home: handing in jobs, and the list of them.

import { readFileSync } from "node:fs";
import type { Page, Response } from "@playwright/test";
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

for (const way of ["paste", "drop"] as const) {
  test(`a playbook is taken by ${way}, and run`, async ({ page, server }) => {
    await page.goto(server.url);
    await page.getByRole("region", { name: "New job" }).evaluate(
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
    await page.getByRole("button", { name: "Run", exact: true }).click();
    await expect(page).toHaveURL(/\/watch\/[0-9a-f-]{36}$/);
    await expect(page.locator("[data-step='13'] [data-status='succeeded']")).toBeVisible();
    const { spec } = (await server.job(page.url().split("/").at(-1) ?? "")) as unknown as { spec: { name: string; steps: { tool: string }[] } };
    const meant = JSON.parse(hello) as { name: string; steps: { tool: string }[] };
    expect([spec.name, spec.steps.map(({ tool }) => tool)]).toEqual([meant.name, meant.steps.map(({ tool }) => tool)]);
  });
}

test("a file that comes along lies in the workspace", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByLabel("Files for the new job").setInputFiles({ name: "notes é.txt", mimeType: "text/plain", buffer: Buffer.from("brought along") });
  await expect(page.getByText("notes é.txt")).toBeVisible();
  await page.getByLabel("Command of step 1").fill("cat notes*");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator("[data-output='1']")).toHaveText(/brought along/);
});

test("all files that are chosen together come along, with the playbook among them", async ({ page, server }) => {
  await page.goto(server.url);
  const file = (name: string, content: string) => ({ name, mimeType: "text/plain", buffer: Buffer.from(content) });
  const playbook = JSON.stringify({ name: "with company", steps: [{ tool: "shell", command: "cat one.txt two.txt" }] });
  await page.getByLabel("Files for the new job").setInputFiles([file("one.txt", "first "), file("job.json", playbook), file("two.txt", "second")]);
  const along = page.getByRole("list", { name: "Files that come along" }).getByRole("listitem");
  await expect(along).toHaveText([/one\.txt/, /two\.txt/]);

  // One that is too large is named, though others fit.
  const large = { name: "large.bin", mimeType: "application/octet-stream", buffer: Buffer.alloc(9_000_000) };
  await page.getByLabel("Files for the new job").setInputFiles([large, file("three.txt", "third")]);
  await expect(along).toHaveText([/one\.txt/, /two\.txt/, /three\.txt/]);
  await expect(page.getByRole("alert")).toContainText("large.bin");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.getByRole("heading", { name: "with company" })).toBeVisible();
  await expect(page.locator("[data-output='1']")).toHaveText(/first second/);
});

test("files that are dropped together all come along", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByRole("region", { name: "New job" }).evaluate((element) => {
    const data = new DataTransfer();
    for (const name of ["a.txt", "b.txt", "c.txt"]) data.items.add(new File([name], name));
    element.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    // What a browser does when the event is over.
    data.items.clear();
  });
  const along = page.getByRole("list", { name: "Files that come along" }).getByRole("listitem");
  await expect(along).toHaveText([/a\.txt/, /b\.txt/, /c\.txt/]);
});

test("a folder among dropped files is named, and the others come along", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByRole("region", { name: "New job" }).evaluate((element) => {
    const data = new DataTransfer();
    // A file that cannot be read, as a folder cannot.
    const folder = new File([], "folder");
    for (const read of ["text", "arrayBuffer"]) Object.defineProperty(folder, read, { value: () => Promise.reject(new Error("it is a folder")) });
    Object.defineProperty(data, "files", { value: [folder, new File(["a"], "a.txt")] });
    element.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
  });
  await expect(page.getByRole("alert")).toContainText("folder cannot be read.");
  await expect(page.getByRole("list", { name: "Files that come along" }).getByRole("listitem")).toHaveText([/a\.txt/]);
});

test("a playbook with a wrong setting is shown, and the server says what is wrong with it", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByRole("region", { name: "New job" }).evaluate((element) => {
    const data = new DataTransfer();
    data.setData("text/plain", '{"steps": [{"tool": "shell", "command": "echo wrong"}], "approve": "shell", "mcp": 7, "secrets": ["a"]}');
    element.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  await expect(page.getByLabel("Command of step 1")).toHaveValue("echo wrong");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.getByRole("alert")).toContainText(/secrets/);
  await expect(page.getByLabel("Command of step 1")).toHaveValue("echo wrong");
});

test("words that are dropped onto a field are written there, and a playbook fills the box", async ({ page, server }) => {
  await page.goto(server.url);
  const command = page.getByLabel("Command of step 1");
  const drop = (text: string) =>
    command.evaluate((element, text) => {
      const data = new DataTransfer();
      data.setData("text/plain", text);
      element.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true, cancelable: true }));
    }, text);
  await command.fill("echo ");
  await drop("words from elsewhere");
  await expect(command).toHaveValue("echo words from elsewhere");
  await expect(page.getByRole("alert")).toHaveCount(0);
  await drop('{"steps": [{"tool": "shell", "command": "echo one"}, {"tool": "shell", "command": "echo two"}]}');
  await expect(page.getByLabel("Command of step 2")).toHaveValue("echo two");
});

test("an example leaves what somebody has begun to write as it is", async ({ page, server }) => {
  await page.goto(server.url);
  await page.getByLabel("Command of step 1").fill("echo not sent yet");
  await page.getByRole("button", { name: /Say hello/ }).click();
  await expect(page).toHaveURL(/\/watch\//);
  await page.getByRole("link", { name: "All jobs" }).click();
  await expect(page.getByLabel("Command of step 1")).toHaveValue("echo not sent yet");
});

test("a server that does not say what it offers is said to, and steps run all the same", async ({ page, server }) => {
  await page.route("**/offer", (route) => route.abort());
  await page.goto(server.url);
  await expect(page.getByRole("alert")).toContainText("The server does not answer");
  for (const colorScheme of ["dark", "light"] as const) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
  await page.getByLabel("Command of step 1").fill("echo without an offer");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.locator("[data-output='1']")).toHaveText(/without an offer/);
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
  await page.getByLabel("With a desktop").check();
  await page.getByLabel("Size of the desktop").selectOption("1024x768");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page.getByRole("heading", { name: "with options" })).toBeVisible();
  const id = page.url().split("/").at(-1) ?? "";
  const { spec } = (await server.job(id)) as unknown as { spec: Record<string, unknown> };
  expect(spec).toMatchObject({ name: "with options", network: { allow: ["example.com:443", "*.example.org"] }, limits: { memory: 268435456, time: 90 }, image: "desktop", desktop: { width: 1024, height: 768 } });
  // The same once more asks for the same.
  await server.ended(id);
  await page.getByRole("button", { name: "Run again" }).click();
  await expect(page.getByText("desktop 1024 × 768")).toBeVisible();
  await page.getByText("Options", { exact: true }).click();
  await expect(page.getByLabel(/^Disk/)).toHaveValue("134217728");
  await expect(page.getByLabel(/^CPUs/)).toHaveValue("");
  await page.getByRole("button", { name: "Run", exact: true }).click();
  await expect(page).not.toHaveURL(new RegExp(id));
  await expect(page).toHaveURL(/\/watch\//);
  const again = (await server.job(page.url().split("/").at(-1) ?? "")) as unknown as { spec: unknown };
  expect(again.spec).toEqual(spec);
});

test("the list follows what happens, is searched, filtered and paged", async ({ page, server }) => {
  await page.goto(server.url);
  const running = await server.schedule(patient("needle in the list"));
  const row = page.locator(`[data-job='${running}']`);
  await expect(row.locator("[data-status='running']")).toBeVisible();
  await expect(row).toContainText("1/3 steps");

  await server.call("POST", `/jobs/${running}/pause`);
  await page.getByLabel("Only jobs that are").selectOption("paused");
  await expect(page.getByRole("list", { name: "Jobs" }).getByRole("link")).toHaveCount(1);
  await expect(row.locator("[data-status='paused']")).toBeVisible();
  await server.call("POST", `/jobs/${running}/resume`);
  await expect(page.getByText("No job fits")).toBeVisible();
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

/** Loads a page anew; all that it took of the wire before it could be used, and whether it is kept as it should be. */
async function firstLoad(page: Page, address: string, ready: () => Promise<void>): Promise<{ bytes: number; faults: string[] }> {
  const weighed: Promise<{ bytes: number; fault: string }>[] = [];
  // Colours come when all else is there: a worker fetches them, and text is shown without them until then.
  const isOfThePage = (path: string) => path === new URL(address).pathname || (path.startsWith("/assets/") && !path.startsWith("/assets/worker-"));
  page.on("response", (response) => {
    const path = new URL(response.url()).pathname;
    if (isOfThePage(path)) weighed.push(weigh(response, path));
  });
  await page.goto(address);
  await ready();
  const all = await Promise.all(weighed);
  return { bytes: all.reduce((sum, { bytes }) => sum + bytes, 0), faults: all.map(({ fault }) => fault).filter(Boolean) };
}

async function weigh(response: Response, path: string): Promise<{ bytes: number; fault: string }> {
  const { responseBodySize, responseHeadersSize } = await response.request().sizes();
  const kept = await response.headerValue("cache-control");
  const packed = await response.headerValue("content-encoding");
  const expected = path.startsWith("/assets/") ? "public, max-age=31536000, immutable" : "no-cache";
  const fault = kept === expected && packed === "gzip" ? "" : `${path}: ${kept}, ${packed}`;
  return { bytes: responseBodySize + responseHeadersSize, fault };
}

test("the first load is small, is kept by name, and is all that is loaded", async ({ page, server }) => {
  const { bytes, faults } = await firstLoad(page, `${server.url}/`, () => expect(page.getByRole("heading", { name: "Jobs" })).toBeVisible());
  expect(faults).toEqual([]);
  expect(bytes).toBeGreaterThan(10_000);
  expect(bytes).toBeLessThan(100_000);
});

test("the first load of a job's page is small too, with the pane that is seen first", async ({ page, server }) => {
  const id = await server.schedule({ steps: [{ tool: "write_file", path: "a.txt", content: "a" }] });
  await server.ended(id);
  const { bytes, faults } = await firstLoad(page, `${server.url}/watch/${id}`, () => expect(page.locator("[data-path='a.txt']")).toBeVisible());
  expect(faults).toEqual([]);
  expect(bytes).toBeGreaterThan(10_000);
  expect(bytes).toBeLessThan(100_000);
});

test("the page of the API can be used by everybody", async ({ page, server }) => {
  await page.goto(`${server.url}/docs`);
  await expect(page.getByRole("heading", { level: 1 })).toBeVisible();
  await expect(page.getByText("/schedule").first()).toBeVisible();
  for (const colorScheme of ["light", "dark"] as const) {
    await page.emulateMedia({ colorScheme });
    await expectAccessible(page);
  }
});
