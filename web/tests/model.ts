// A model that says what a test wants it to: a server that speaks Chat Completions, for the real program
// to ask.

import { once } from "node:events";
import { createServer, type Server as HttpServer } from "node:http";

export interface Call {
  tool: string;
  arguments: Record<string, unknown>;
}

export class ScriptedModel {
  /** What it was asked, in its order. */
  readonly asked: { messages: { role: string; content: unknown }[] }[] = [];
  #server: HttpServer;
  #script: Call[];

  private constructor(script: Call[]) {
    this.#script = [...script];
    this.#server = createServer((request, response) => {
      let body = "";
      request.on("data", (piece) => (body += String(piece)));
      request.on("end", () => {
        if (request.method !== "POST") {
          response.setHeader("content-type", "application/json");
          response.end(JSON.stringify({ data: [{ id: "scripted" }] }));
          return;
        }
        this.asked.push(JSON.parse(body) as (typeof this.asked)[number]);
        const call = this.#script.shift() ?? finish("There is nothing more in the script.");
        const n = this.asked.length;
        const part = { index: 0, id: `call_${n}`, type: "function", function: { name: call.tool, arguments: JSON.stringify(call.arguments) } };
        const chunks = [
          { choices: [{ index: 0, delta: { role: "assistant", tool_calls: [part] } }] },
          { choices: [{ index: 0, delta: {}, finish_reason: "tool_calls" }] },
          { choices: [], usage: { prompt_tokens: 1000 * n, completion_tokens: 20 } },
        ];
        response.setHeader("content-type", "text/event-stream");
        response.end(chunks.map((chunk) => `data: ${JSON.stringify(chunk)}\n\n`).join("") + "data: [DONE]\n\n");
      });
    });
  }

  static async start(...script: Call[]): Promise<ScriptedModel> {
    const model = new ScriptedModel(script);
    model.#server.listen(0, "127.0.0.1");
    await once(model.#server, "listening");
    return model;
  }

  /** What the program's configuration says to use it. */
  get config(): string {
    const address = this.#server.address();
    if (address === null || typeof address === "string") throw new Error("the model does not listen");
    return `[model]\ndefault = "local/scripted"\nbase_url = "http://127.0.0.1:${address.port}/v1"\n`;
  }

  /** All that it was told the last time, as one text. */
  get lastTold(): string {
    return JSON.stringify(this.asked.at(-1)?.messages ?? []);
  }

  stop(): void {
    this.#server.closeAllConnections();
    this.#server.close();
  }
}

export function call(tool: string, fields: Record<string, unknown>): Call {
  return { tool, arguments: fields };
}

export function finish(summary: string): Call {
  return call("finish", { outcome: "done", summary });
}
