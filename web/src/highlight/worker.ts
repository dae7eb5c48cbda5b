// Colours text, away from the page: a text that was made to keep a grammar busy for ever keeps only
// this worker busy, and the page ends it. Gives back pieces of text with class names, never markup.

import bash from "highlight.js/lib/languages/bash";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { createLowlight } from "lowlight";

const lowlight = createLowlight({
  bash, cpp, css, diff, go, ini, java, json, markdown, python, rust, sql, typescript, xml, yaml,
});

export interface Order {
  id: number;
  language: string;
  text: string;
}

/** A piece of the text and the kind of thing that it is; empty for plain text. */
export type Span = [kind: string, text: string];

type Node = ReturnType<typeof lowlight.highlight>["children"][number];

function flatten(nodes: Node[], kind: string, into: Span[]): Span[] {
  for (const node of nodes) {
    if (node.type === "text") into.push([kind, node.value]);
    if (node.type === "element") {
      const names = node.properties["className"];
      const own = Array.isArray(names) ? String(names[0]).replace("hljs-", "") : kind;
      flatten(node.children as Node[], own, into);
    }
  }
  return into;
}

addEventListener("message", ({ data }: MessageEvent<Order>) => {
  const known = lowlight.registered(data.language);
  const spans: Span[] = known
    ? flatten(lowlight.highlight(data.language, data.text).children, "", [])
    : [["", data.text]];
  postMessage({ id: data.id, spans });
});
