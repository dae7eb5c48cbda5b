// How the page is built: hashed names under assets/, each file also packed for the wire, and a first
// load that stays small.

import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig, type Plugin } from "vite";
import { notices } from "./notices.ts";

const folder = "dist/page";

/** The server sends what is packed here to browsers that take it; it packs nothing itself. */
function packed(): Plugin {
  return {
    name: "packed",
    apply: "build",
    closeBundle() {
      for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
        if (!entry.isFile() || entry.name.endsWith(".gz")) continue;
        const file = join(entry.parentPath, entry.name);
        writeFileSync(`${file}.gz`, gzipSync(readFileSync(file), { level: 9 }));
      }
    },
  };
}

export default defineConfig({
  plugins: [svelte(), notices(folder), packed()],
  build: {
    outDir: folder,
    emptyOutDir: true,
    target: "es2022",
    // An asset inside of a stylesheet or script would need a weaker policy.
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    rolldownOptions: {
      input: ["index.html", "desktop.html"],
      // What both the page and its panes use would else be a file for each use, and each file costs a request. What
      // acts as soon as it is loaded is not among it: the page of a desktop alone loads this file too.
      output: { codeSplitting: { groups: [{ name: "shared", test: /\/src\/(api|desktop\/channel|home\/(Steps|tools)|job|parts|shell\/theme|format|style)/, minShareCount: 2 }] } },
    },
  },
  worker: { format: "es", plugins: () => [notices(folder)] },
});
