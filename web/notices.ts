// The licences of other people's code that is a part of the page, collected while the page is built from
// the packages that were truly read for it.

import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join, relative } from "node:path";
import type { Plugin } from "vite";

/** Folders of packages, by the scripts and styles that were read. Builds of workers share it. */
const packages = new Set<string>();

export function notices(folder: string): Plugin {
  return {
    name: "notices",
    apply: "build",
    transform(_code, id) {
      const found = /^(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(id.replace(/^\0/, "").split("?")[0] ?? "");
      if (found?.[1]) packages.add(found[1]);
      return null;
    },
    closeBundle() {
      if (!existsSync(folder)) return;
      const parts = [...packages].sort().map(describe);
      const head = "The page of Bellglass contains code of these packages, each under its own licence.\n";
      writeFileSync(join(folder, "notices.txt"), [head, ...parts].join(`\n${"=".repeat(78)}\n\n`));
    },
  };
}

function describe(folder: string): string {
  const { name, version, license, author, homepage, repository } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Record<string, unknown>;
  const source = (repository as { url?: string } | undefined)?.url ?? repository ?? homepage ?? "";
  const head = `${String(name)} ${String(version)}\nLicence: ${String(license)}\nSource: ${String(source).replace(/^git\+/, "")}\n`;
  const texts = licences(folder).map((file) => `--- ${relative(folder, file)}\n\n${readFileSync(file, "utf8").trim()}\n`);
  if (texts.length === 0 && license === "MIT") texts.push(MIT(holder(author) ?? `the authors of ${String(name)}`));
  if (texts.length === 0) throw new Error(`${String(name)} has no licence text to ship`);
  return [head, ...texts].join("\n");
}

/** Every licence in a package, also of what it has taken over from others. */
function licences(folder: string): string[] {
  return readdirSync(folder, { withFileTypes: true }).flatMap((entry) => {
    const path = join(folder, entry.name);
    if (entry.isDirectory()) return entry.name === "node_modules" ? [] : licences(path);
    return /^(licen[cs]e|notice|copying)/i.test(entry.name) && !/\.(js|ts|map)$/.test(entry.name) ? [path] : [];
  });
}

function holder(author: unknown): string | undefined {
  if (typeof author === "string") return author;
  const name = (author as { name?: unknown } | undefined)?.name;
  return typeof name === "string" ? name : undefined;
}

/** The licence's own words, for a package that names it and does not bring them. */
const MIT = (who: string) => `MIT License

Copyright (c) ${who}

Permission is hereby granted, free of charge, to any person obtaining a copy
of this software and associated documentation files (the "Software"), to deal
in the Software without restriction, including without limitation the rights
to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
copies of the Software, and to permit persons to whom the Software is
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all
copies or substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
SOFTWARE.
`;
