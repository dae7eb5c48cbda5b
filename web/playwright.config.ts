// How the page is tested: pure parts for themselves, everything else in a real browser over the real
// server with real sandboxes. Nothing is tried twice: a test that fails now and then is a fault.

import { existsSync } from "node:fs";
import { defineConfig } from "@playwright/test";

const browser =
  process.env["BELLGLASS_CHROMIUM"] ??
  ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((path) => existsSync(path)) ??
  "chromium-is-not-installed";

export default defineConfig({
  testDir: "tests",
  outputDir: "test-results",
  fullyParallel: true,
  forbidOnly: true,
  retries: 0,
  workers: 2,
  timeout: 90_000,
  expect: { timeout: 20_000 },
  reporter: [["list"]],
  use: {
    viewport: { width: 1280, height: 800 },
    launchOptions: {
      executablePath: browser,
      // Chromium cannot build its own sandbox as root; what it loads here is only our page.
      args: process.getuid?.() === 0 ? ["--no-sandbox"] : [],
    },
    screenshot: "only-on-failure",
  },
  projects: [
    { name: "unit", testDir: "tests/unit" },
    { name: "page", testDir: "tests/page" },
    { name: "pictures", testDir: "tests/pictures" },
  ],
});
