// A real server for a test: the program itself on a port of its own, with a folder of its own. It can be
// killed and started again, as real ones are.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const PROGRAM = process.env["BELLGLASS"] ?? resolve(import.meta.dirname, "../../target/debug/bellglass");

export interface Job {
  status: string;
  last_seq: number;
  steps: { n: number; status: string; stdout: string }[];
}

export class Server {
  readonly url: string;
  #process: ChildProcess | undefined;
  #log = "";

  private constructor(
    private readonly port: number,
    private readonly data: string,
    private readonly env: Record<string, string>,
  ) {
    this.url = `http://localhost:${port}`;
  }

  static async start(env: Record<string, string> = {}, config = ""): Promise<Server> {
    const data = await mkdtemp(join(tmpdir(), "bellglass-page-"));
    await writeFile(join(data, "bellglass.toml"), config);
    const server = new Server(await freePort(), data, env);
    await server.up();
    return server;
  }

  /** Starts the program and waits until it answers. */
  async up(): Promise<void> {
    const args = ["serve", "--listen", `127.0.0.1:${this.port}`, "--data", join(this.data, "jobs")];
    const child = spawn(PROGRAM, [...args, "--config", join(this.data, "bellglass.toml")], {
      env: { ...process.env, BELLGLASS_TOKEN: "", ...this.env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    for (const stream of [child.stdout, child.stderr]) stream.on("data", (data) => (this.#log += String(data)));
    this.#process = child;
    for (;;) {
      if (child.exitCode !== null) throw new Error(`the server did not start:\n${this.#log}`);
      const ready = await fetch(`${this.url}/readyz`).catch(() => undefined);
      if (ready?.ok) return;
      await new Promise((next) => setTimeout(next, 50));
    }
  }

  async down(signal: "SIGTERM" | "SIGKILL" = "SIGTERM"): Promise<void> {
    const child = this.#process;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const ended = once(child, "exit");
    child.kill(signal);
    await ended;
  }

  /** Ends the server for good. Jobs that still run are cancelled, so that no sandbox is left. */
  async remove(): Promise<void> {
    for (const status of ["running", "paused", "scheduled"]) {
      const { jobs } = (await this.call("GET", `/jobs?status=${status}`)) as { jobs: { job_id: string }[] };
      for (const { job_id } of jobs) {
        await this.call("POST", `/jobs/${job_id}/cancel`);
        await this.ended(job_id);
      }
    }
    await this.down();
    await rm(this.data, { recursive: true, force: true });
  }

  async call(method: string, path: string, body?: unknown, token = this.env["BELLGLASS_TOKEN"]): Promise<unknown> {
    const response = await fetch(`${this.url}${path}`, {
      method,
      headers: {
        "content-type": "application/json",
        ...(token ? { authorization: `Bearer ${token}` } : {}),
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
    });
    if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
    return response.status === 204 ? undefined : response.json();
  }

  async schedule(job: unknown, token?: string): Promise<string> {
    return ((await this.call("POST", "/schedule", job, token)) as { job_id: string }).job_id;
  }

  /** A token for a user, made by whoever runs the server. */
  async token(user: string, role = "user"): Promise<{ token: string; id: string }> {
    return (await this.call("POST", "/tokens", { user, role })) as { token: string; id: string };
  }

  async job(id: string): Promise<Job> {
    return (await this.call("GET", `/jobs/${id}`)) as Job;
  }

  /** Puts a file into a workspace; a server that was just started may have to find the sandbox first. */
  async put(id: string, path: string): Promise<void> {
    for (;;) {
      const response = await fetch(`${this.url}/jobs/${id}/files/${path}`, { method: "PUT", body: "x" });
      if (response.ok) return;
      if (!response.headers.has("retry-after")) throw new Error(`${response.status} ${await response.text()}`);
      await new Promise((next) => setTimeout(next, 100));
    }
  }

  /** Waits for a job's last event. */
  async ended(id: string): Promise<Job> {
    const token = this.env["BELLGLASS_TOKEN"];
    const response = await fetch(`${this.url}/jobs/${id}/events?format=jsonl&follow=true`, {
      headers: token ? { authorization: `Bearer ${token}` } : {},
    });
    await response.text();
    return this.job(id);
  }
}

async function freePort(): Promise<number> {
  const listener = createServer().listen(0, "127.0.0.1");
  await once(listener, "listening");
  const address = listener.address();
  listener.close();
  await once(listener, "close");
  if (address === null || typeof address === "string") throw new Error("no free port");
  return address.port;
}
