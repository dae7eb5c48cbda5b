// How policies, verdicts and places are said to people.

import type { LivePlace, NetworkPolicy, Verdict } from "../api/types";

export const verdictWords: Record<Verdict, string> = {
  allowed: "was reached",
  refused_by_policy: "was refused: the job's policy does not name it",
  refused_private_address: "was refused: its address is not public",
  not_resolved: "has no address",
  not_connected: "did not answer",
  cut_by_policy: "was cut when the policy changed",
};

export const verdictLabels: Record<Verdict, string> = {
  allowed: "Allowed",
  refused_by_policy: "Refused by policy",
  refused_private_address: "Private address",
  not_resolved: "Not resolved",
  not_connected: "No answer",
  cut_by_policy: "Cut",
};

export function policyWords(policy: NetworkPolicy): string {
  if (typeof policy === "object") {
    return policy.allow.length > 0 ? policy.allow.join(", ") : "no host";
  }
  return { none: "nothing", registries: "package registries", open: "every public address" }[policy];
}

/** Who did something, where that is worth saying: servers without users know only that somebody did. */
export function named(by: string): string {
  return ["user", "api", "mcp", "approval", "plan", "question", ""].includes(by) ? "" : by;
}

/** What of a sandbox a person opened. */
export function placeWords(place: LivePlace): string {
  if (place === "desktop") return "the desktop";
  if (place === "terminal") return "a terminal";
  if (place === "jupyter") return "JupyterLab";
  return "port" in place ? `the app on port ${place.port}` : `the session “${place.session}”`;
}
