// Every call that the page makes. A call gives what was asked for or throws a Problem.

import createClient, { type Middleware } from "openapi-fetch";
import { problemOf, unreachable } from "./problem";
import type { components, paths } from "./schema";
import type { App, Decision, Folder, ForkWish, JobRequest, JobStatus, ListedJob, Memory, NetworkPolicy, Offer, Shared, Status, WhoAmI } from "./types";

/** Told of every answer that says "log in first". */
let onLoginNeeded: () => void = () => {};

export function whenLoginIsNeeded(act: () => void): void {
  onLoginNeeded = act;
}

const failures: Middleware = {
  async onResponse({ response }) {
    await refuse(response);
    return undefined;
  },
  onError() {
    return unreachable();
  },
};

const client = createClient<paths>({ baseUrl: location.origin });
client.use(failures);

async function refuse(response: Response): Promise<void> {
  if (response.ok) return;
  if (response.status === 401) onLoginNeeded();
  throw problemOf(response.status, await response.json().catch(() => undefined));
}

/** For the addresses of files, whose paths span slashes and whose bodies are bytes. */
async function raw(path: string, init?: RequestInit): Promise<Response> {
  let response: Response;
  try {
    response = await fetch(path, init);
  } catch (error) {
    throw init?.signal?.aborted ? error : unreachable();
  }
  await refuse(response);
  return response;
}

function must<T>(answer: { data?: T }): T {
  return answer.data as T;
}

export async function getOffer(): Promise<Offer> {
  return must(await client.GET("/offer"));
}

export interface Filter {
  limit: number;
  status?: JobStatus;
  search?: string;
  before?: string;
}

export async function listJobs(filter: Filter): Promise<{ jobs: ListedJob[]; more: boolean }> {
  const { jobs, next } = must(await client.GET("/jobs", { params: { query: filter } }));
  return { jobs, more: next !== null };
}

/** Where a job stands and what may be done with it, if there is such a job and this browser may see it. */
export async function getStatus(id: string): Promise<Status> {
  return must(await client.GET("/status/{id}", { params: { path: { id } } }));
}

export async function schedule(request: JobRequest): Promise<string> {
  return must(await client.POST("/schedule", { body: request })).job_id;
}

export async function cancel(id: string): Promise<void> {
  await client.POST("/jobs/{id}/cancel", { params: { path: { id } } });
}

export async function pause(id: string): Promise<void> {
  await client.POST("/jobs/{id}/pause", { params: { path: { id } } });
}

export async function resume(id: string): Promise<void> {
  await client.POST("/jobs/{id}/resume", { params: { path: { id } } });
}

type ForkRequest = components["schemas"]["ForkRequest"];

/** A new job that goes on from a step of another one. Gives the new job's id. */
export async function fork(id: string, wish: ForkWish): Promise<string> {
  return must(await client.POST("/jobs/{id}/fork", { params: { path: { id } }, body: wish as ForkRequest })).job_id;
}

export async function sendMessage(id: string, text: string): Promise<void> {
  await client.POST("/jobs/{id}/messages", { params: { path: { id } }, body: { text } });
}

export async function decide(id: string, approval: string, decision: Decision, words?: string): Promise<void> {
  const body = words ? { decision, words } : { decision };
  await client.POST("/jobs/{id}/approvals/{approval}", { params: { path: { id, approval } }, body });
}

export async function share(id: string, wish: { expires_in: number; files: boolean; output: boolean }): Promise<Shared> {
  return must(await client.POST("/jobs/{id}/share", { params: { path: { id } }, body: wish }));
}

export async function unshare(id: string): Promise<void> {
  await client.DELETE("/jobs/{id}/share", { params: { path: { id } } });
}

export async function listMemories(query: { project?: string; search?: string; limit?: number }): Promise<Memory[]> {
  return must(await client.GET("/memories", { params: { query } })).memories;
}

export async function addMemory(project: string, text: string): Promise<Memory> {
  return must(await client.POST("/memories", { body: { project, text } }));
}

export async function changeMemory(memory: number, text: string): Promise<Memory> {
  return must(await client.PUT("/memories/{memory}", { params: { path: { memory } }, body: { text } }));
}

export async function forgetMemory(memory: number): Promise<void> {
  await client.DELETE("/memories/{memory}", { params: { path: { memory } } });
}

/** What a task's model is shown, now or after an event. Its shape is the server's own. */
export async function getContext(id: string, at: number | undefined): Promise<unknown> {
  const query = at === undefined ? {} : { at };
  return must(await client.GET("/jobs/{id}/context", { params: { path: { id }, query } }));
}

export async function changeNetwork(id: string, network: NetworkPolicy): Promise<void> {
  await client.PUT("/jobs/{id}/network", { params: { path: { id } }, body: { network } });
}

/** What listens in a job's sandbox. */
export async function listPorts(id: string): Promise<App[]> {
  return must(await client.GET("/jobs/{id}/ports", { params: { path: { id } } })).ports;
}

export async function logIn(token: string): Promise<void> {
  await client.POST("/session", { body: { token } });
}

export async function whoAmI(): Promise<WhoAmI> {
  return must(await client.GET("/session"));
}

export async function logOut(): Promise<void> {
  await client.DELETE("/session");
}

/** The address of a file in a workspace; every part of the path is a name, whatever is in it. */
export function fileAddress(id: string, path: string): string {
  const names = path.split("/").filter((name) => name !== "");
  return `/jobs/${encodeURIComponent(id)}/files/${names.map(encodeURIComponent).join("/")}`;
}

export async function listFolder(id: string, path: string): Promise<Folder> {
  return (await raw(fileAddress(id, path))).json() as Promise<Folder>;
}

export function readFile(id: string, path: string, signal: AbortSignal): Promise<Response> {
  return raw(fileAddress(id, path), { signal });
}

export async function writeFile(id: string, path: string, content: Blob): Promise<void> {
  const headers = { "content-type": "application/octet-stream" };
  await raw(fileAddress(id, path), { method: "PUT", body: content, headers });
}

export async function deleteFile(id: string, path: string): Promise<void> {
  await raw(fileAddress(id, path), { method: "DELETE" });
}

export function zipAddress(id: string): string {
  return `/jobs/${encodeURIComponent(id)}/output.zip`;
}

export function logAddress(id: string): string {
  return `/jobs/${encodeURIComponent(id)}/events?format=jsonl`;
}

export function attachmentAddress(id: string, n: number, k: number): string {
  return `/jobs/${encodeURIComponent(id)}/steps/${n}/attachments/${k}`;
}

export async function readAttachment(id: string, n: number, k: number, signal: AbortSignal): Promise<ArrayBuffer> {
  return (await raw(attachmentAddress(id, n, k), { signal })).arrayBuffer();
}

export function outputAddress(id: string, n: number): string {
  return `/jobs/${encodeURIComponent(id)}/steps/${n}/output`;
}

/** What a step did to the workspace, as a unified diff. */
export async function readDiff(id: string, n: number): Promise<string> {
  return (await raw(`/jobs/${encodeURIComponent(id)}/steps/${n}/diff`)).text();
}
