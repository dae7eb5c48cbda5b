// What every test of the page gets: a server of its own worker, and a page that is watched. A page that
// asks another host for anything, breaks its policy or throws fails the test, whatever else it does.

import axe from "axe-core";
import { expect, type Page, test as base } from "@playwright/test";
import { Server } from "./server";

export const test = base.extend<{ watched: void }, { server: Server }>({
  server: [
    async ({}, use) => {
      const server = await Server.start();
      await use(server);
      await server.remove();
    },
    { scope: "worker", timeout: 60_000 },
  ],
  watched: [
    async ({ page }, use) => {
      const faults: string[] = [];
      page.on("pageerror", (error) => {
        // What a program of a sandbox throws, as when its job is over, is not thrown by ours.
        if (!/\/\/[^/\s]+\.localhost[:/]/.test(error.stack ?? "")) faults.push(`thrown: ${error.message}`);
      });
      page.on("console", (message) => {
        // That another's page may not show ours within itself is no breach but the policy at work.
        if (/frame-ancestors/.test(message.text())) return;
        // Neither is what a page of a sandbox may not do.
        if (isOfSandbox(message.location().url)) return;
        if (/Content Security Policy|Trusted ?Type/i.test(message.text())) faults.push(message.text());
      });
      page.on("request", (request) => {
        const { protocol, hostname } = new URL(request.url());
        // What a sandbox serves has a name of its own below this one.
        const isOurs = hostname === "localhost" || hostname.endsWith(".localhost");
        if (!["blob:", "data:"].includes(protocol) && !isOurs) faults.push(`asked ${request.url()}`);
      });
      await use();
      expect(faults).toEqual([]);
    },
    { auto: true },
  ],
});

export { expect };

function isOfSandbox(url: string): boolean {
  return URL.canParse(url) && new URL(url).hostname.endsWith(".localhost");
}

/** Fails on anything that keeps people with a screen reader or a keyboard out. */
export async function expectAccessible(page: Page): Promise<void> {
  await page.evaluate(axe.source);
  // A colour on its way to another one is not the one that people see.
  await page.evaluate(async () => {
    const changing = document.getAnimations().filter((animation) => animation instanceof CSSTransition);
    await Promise.allSettled(changing.map((animation) => animation.finished));
  });
  const violations = await page.evaluate(async () => {
    const { axe } = globalThis as unknown as { axe: typeof import("axe-core") };
    const { violations } = await axe.run(document, { resultTypes: ["violations"] });
    return violations.map(({ id, impact, nodes }) => ({ id, impact, where: nodes.map((node) => node.target.join(" ")) }));
  });
  expect(violations.filter(({ impact }) => impact === "serious" || impact === "critical")).toEqual([]);
}

/** A job that does something every quarter of a second until it is told that it is enough. */
export function patient(name: string) {
  return {
    name,
    steps: [
      { tool: "shell", command: "echo first > first.txt; echo ready" },
      {
        tool: "shell",
        command: "for i in $(seq 1 1200); do echo tick $i; test -e enough.txt && break; sleep 0.25; done; echo over",
      },
      { tool: "shell", command: "echo last; ls" },
    ],
  };
}

/** Waits, in the sandbox, until a file of this name is put into the workspace. */
export function until(name: string) {
  return { tool: "shell", command: `until test -e ${name}; do sleep 0.1; done` };
}
