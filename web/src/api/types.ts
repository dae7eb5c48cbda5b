// Short names for what the API sends, all taken from its own description.

import type { components } from "./schema";

type Schemas = components["schemas"];

export type JobEvent = Schemas["Event"];
export type JobRequest = Schemas["JobRequest"];
export type JobSpec = Schemas["JobSpec"];
export type JobStatus = Schemas["JobStatus"];
export type ListedJob = Schemas["ListedJob"];
export type Offer = Schemas["InstallationOffer"];
export type SandboxReport = Schemas["SandboxReport"];
export type ResultSummary = Schemas["ResultSummary"];
export type JobError = Schemas["JobError"];
export type NetworkPolicy = Schemas["NetworkPolicy"];
export type Connection = Schemas["Connection"];
export type Verdict = Schemas["Verdict"];
export type StepStatus = Schemas["StepStatus"];
export type StepOutcome = Schemas["StepOutcome"];
export type ToolError = Schemas["ToolError"];
export type FolderEntry = Schemas["FolderEntry"];
export type Folder = Schemas["Folder"];
export type Limits = Schemas["Limits"];
export type ModelAnswer = Schemas["ModelAnswer"];
export type PlanStep = Schemas["PlanStep"];
export type UsageTotal = Schemas["UsageTotal"];
export type Approval = Schemas["Approval"];
export type Decision = Schemas["Decision"];
export type Changes = Schemas["Changes"];
export type RestoreCause = Schemas["RestoreCause"];
export type Status = Schemas["Status"];
export type JobAccess = Schemas["JobAccess"];
export type Memory = Schemas["MemoryView"];
export type Shared = Schemas["Shared"];
export type WhoAmI = Schemas["WhoAmI"];
export type App = Schemas["App"];
export type LivePlace = Schemas["LivePlace"];
export type ProblemDocument = Schemas["Problem"];

/** A tool call as it is written; tools that this page does not know have fields that it does not know. */
export type AnyCall = { tool: string } & Record<string, unknown>;

/** Where to leave a job, and what to do then. */
export type ForkWish = Omit<Schemas["ForkRequest"], "steps"> & { steps?: AnyCall[] };

export const ENDED: readonly JobStatus[] = ["completed", "failed", "cancelled"];

export function hasEnded(status: JobStatus): boolean {
  return ENDED.includes(status);
}
