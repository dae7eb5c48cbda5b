// What comes out of a sandbox is hostile. Nothing of it may run on the page's origin, whatever it is
// called, whatever is in it, and however a person opens it.

import { expect, test } from "../fixtures";

const ATTACK = `<img src=x onerror="document.title='pwned';window.pwned=1"><script>window.pwned=1;document.title='pwned'</script>`;

const files: Record<string, string> = {
  "evil.html": `<!doctype html>${ATTACK}`,
  "evil.svg": `<svg xmlns="http://www.w3.org/2000/svg" onload="window.pwned=1"><script>window.pwned=1</script></svg>`,
  "evil.md": `# hi ${ATTACK}\n[x](javascript:window.pwned=1)`,
  "evil.js": "window.pwned=1",
  "evil.png": `<!doctype html>${ATTACK}`,
  "<img src=x onerror=window.pwned=1>": ATTACK,
  "'\"><svg onload=window.pwned=1>.txt": ATTACK,
};

test("markup in output, names, errors and files stays text", async ({ page, server }) => {
  const steps = [
    { tool: "shell", command: `printf '%s\\n' '${ATTACK.replaceAll("'", "'\\''")}' | tee /dev/stderr; exit 3` },
    { tool: "read_file", path: `no such ${ATTACK.slice(0, 60)}`.replaceAll("/", "") },
    { tool: "search_files", pattern: ATTACK.slice(0, 20) },
    ...Object.entries(files).map(([path, content]) => ({ tool: "write_file", path, content })),
    { tool: "shell", command: "sleep 600" },
  ];
  // While it runs, since the ZIP has tamer names.
  const id = await server.schedule({ name: ATTACK, steps });
  await page.goto(server.url);
  await expect(page.locator(`[data-job='${id}']`)).toContainText("<img src=x onerror=");

  await page.goto(`${server.url}/watch/${id}`);
  await expect(page.locator("[data-output='1']")).toContainText("<script>");
  for (const name of Object.keys(files)) {
    await page.locator("[data-path]").filter({ hasText: name }).first().click();
    await expect(page.getByRole("heading", { level: 3 })).toHaveText(name);
    if (!name.endsWith(".png")) await expect(page.getByRole("region", { name: /^Content of/ })).toContainText("pwned");
    await page.getByRole("button", { name: "Back to the list of files" }).click();
  }
  await server.call("POST", `/jobs/${id}/cancel`);
  await expect(page.locator("main header [data-status='cancelled']").first()).toBeVisible();
  await page.getByRole("tab", { name: "Log" }).click();
  await page.locator("[data-seq] summary").nth(4).click();
  expect(await page.evaluate(() => (window as { pwned?: number }).pwned)).toBeUndefined();
  expect(await page.title()).toContain("Bellglass");
  expect(await page.locator("main img, main iframe, main script, main object, main embed").count()).toBe(0);
});

test("a hostile file that is opened by its own address runs nothing and reaches nothing", async ({ page, server, context }) => {
  const script = `fetch("/jobs").then((r) => r.text()).then((t) => { document.title = "pwned " + t.length; });`;
  const content = `<!doctype html><title>quiet</title><body><script>${script}</script>`;
  const names = ["a.html", "a.svg", "a.xml", "a.txt", "a.md", "a.json", "a.xhtml", "a", "a.htm", "a.pdf"];
  const id = await server.schedule({ steps: names.map((path) => ({ tool: "write_file", path, content })) });
  await server.ended(id);
  const asked: string[] = [];
  context.on("request", (request) => {
    if (new URL(request.url()).pathname === "/jobs") asked.push(request.url());
  });
  for (const name of names) {
    const address = `${server.url}/jobs/${id}/files/${name}`;
    const { headers } = await fetch(address);
    expect(headers.get("content-security-policy"), name).toContain("sandbox; default-src 'none'");
    expect(headers.get("x-content-type-options")).toBe("nosniff");
    // Most of them are downloads, which ends the navigation with an error of the browser's.
    await page.goto(address).catch((error: Error) => expect(error.message).toContain("Download is starting"));
    expect(await page.title()).not.toContain("pwned");
  }
  expect(asked).toEqual([]);
});

test("the page's own policy lets no text become script, even if the page tried", async ({ page, server }) => {
  await page.goto(server.url);
  const tried = await page.evaluate(() => {
    const attempt = (act: () => unknown) => {
      try {
        act();
        return "done";
      } catch (error) {
        return (error as Error).name;
      }
    };
    return [
      attempt(() => (document.createElement("div").innerHTML = "<b>x</b>")),
      attempt(() => setTimeout("window.pwned = 1", 0)),
      attempt(() => document.createElement("script").setAttribute("src", "/jobs")),
      attempt(() => new Worker("/jobs")),
    ];
  });
  // A text that is to become script or markup is of the wrong type.
  expect(tried).toEqual(["TypeError", "TypeError", "TypeError", "TypeError"]);
  const policy = (await fetch(server.url)).headers.get("content-security-policy") ?? "";
  for (const rule of ["default-src 'none'", "script-src 'self'", "connect-src 'self'", "base-uri 'none'"]) expect(policy).toContain(rule);
  expect(policy).not.toContain("unsafe");
});
