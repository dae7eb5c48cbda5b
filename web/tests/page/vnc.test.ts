// A desktop's own port: for a browser, and for a VNC viewer that knows nothing of us.

import { execFile } from "node:child_process";
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { promisify } from "node:util";
import { expect, expectAccessible, test } from "../fixtures";
import { Server } from "../server";

const run = promisify(execFile);
const VNCDO = resolve(import.meta.dirname, "../../dist/viewer/bin/vncdo");

const steps = [
  { tool: "shell", command: "setsid xterm -bg '#ff0000' -fg '#ffffff' -geometry 200x60+0+0 >/dev/null 2>&1 & until xdotool search --class xterm; do sleep 0.1; done" },
  { tool: "shell", command: "until test -e enough.txt; do sleep 0.1; done" },
];

test("a desktop's own port shows it to a browser and to a VNC viewer, for its password", async ({ page }) => {
  const server = await Server.start({}, '[server]\nvnc_ports = "46200-46299"\n');
  const folder = await mkdtemp(join(tmpdir(), "bellglass-vnc-"));
  try {
    const job = (await server.call("POST", "/schedule", { desktop: true, steps })) as { job_id: string; vnc_port: number };
    const { vnc_password: password } = (await server.call("GET", `/status/${job.job_id}`)) as { vnc_password: string };
    await expect.poll(async () => (await server.job(job.job_id)).steps.length).toBe(2);

    // Who may change the job finds on its page where a viewer finds the desktop.
    await page.goto(`${server.url}/watch/${job.job_id}#desktop`);
    await expect(page.getByText("For a VNC viewer")).toContainText(`localhost:${job.vnc_port}, password ${password}`);
    await expectAccessible(page);

    await page.goto(`http://localhost:${job.vnc_port}/`);
    await page.getByLabel("The job's password").fill("wrong");
    await page.getByRole("button", { name: "Show the desktop" }).click();
    await expect(page.getByRole("alert")).toContainText("not the job's password");
    await expectAccessible(page);
    await page.getByLabel("The job's password").fill(password);
    await page.getByRole("button", { name: "Show the desktop" }).click();
    await expect(page.locator("[data-stand='shown'] canvas")).toBeVisible();

    // The viewer points, types and takes a picture; what it does is the job's to hear of.
    const picture = join(folder, "screen.png");
    const words = ["move", "60", "60", "click", "1", "type", "touch typed-there", "key", "enter", "pause", "1", "capture", picture];
    const refused = run(VNCDO, ["-s", `127.0.0.1::${job.vnc_port}`, "-p", "wrong", "-t", "20", "capture", picture]);
    await expect(refused).rejects.toThrow();
    await run(VNCDO, ["-s", `127.0.0.1::${job.vnc_port}`, "-p", password, "-t", "60", ...words]);
    const typed = async () => (await fetch(`${server.url}/jobs/${job.job_id}/files/typed-there`)).ok;
    await expect.poll(typed).toBe(true);
    const data = (await readFile(picture)).toString("base64");
    const seen = await page.evaluate(async (data) => {
      const image = new Image();
      image.src = `data:image/png;base64,${data}`;
      await image.decode();
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [image.width, image.height];
      const context = canvas.getContext("2d")!;
      context.drawImage(image, 0, 0);
      return { width: image.width, height: image.height, point: [...context.getImageData(600, 400, 1, 1).data] };
    }, data);
    expect(seen).toEqual({ width: 1280, height: 800, point: [255, 0, 0, 255] });
    const { events } = { events: await (await fetch(`${server.url}/jobs/${job.job_id}/events?format=jsonl`)).text() };
    expect(events).toContain('"desktop.taken"');

    await server.put(job.job_id, "enough.txt");
    await server.ended(job.job_id);
  } finally {
    await rm(folder, { recursive: true });
    await server.remove();
  }
});
