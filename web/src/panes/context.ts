// A model's conversation as the server gives it, read with care: its shape belongs to the models' wires.

export type Part =
  | { kind: "text"; text: string }
  | { kind: "call"; tool: string; arguments: string }
  | { kind: "result"; text: string; failed: boolean; shown: string }
  | { kind: "other"; name: string };

export interface Message {
  /** The number of the event that it comes from. */
  entry: number;
  role: "user" | "assistant";
  parts: Part[];
}

export interface Context {
  tokens: number;
  messages: Message[];
}

type Fields = Record<string, unknown>;

export function contextOf(body: unknown): Context {
  const { tokens, messages } = fields(body);
  return { tokens: number(tokens), messages: list(messages).map(messageOf) };
}

function messageOf(message: Fields): Message {
  const role = message["role"] === "assistant" ? "assistant" : "user";
  const said: Part[] = typeof message["text"] === "string" ? [{ kind: "text", text: message["text"] }] : [];
  const blocks = list(message["blocks"]).map(blockOf);
  const results = list(message["results"]).map(
    (result): Part => ({ kind: "result", text: text(result["text"]), failed: result["failed"] === true, shown: text(result["shown"]) }),
  );
  return { entry: number(message["entry"]), role, parts: [...said, ...blocks, ...results] };
}

function blockOf(block: Fields): Part {
  if (block["type"] === "text") return { kind: "text", text: text(block["text"]) };
  if (block["type"] === "tool_call") return { kind: "call", tool: text(block["name"]), arguments: text(block["arguments"]) };
  return { kind: "other", name: text(block["type"]) };
}

function fields(value: unknown): Fields {
  return typeof value === "object" && value !== null ? (value as Fields) : {};
}

function list(value: unknown): Fields[] {
  return Array.isArray(value) ? value.map(fields) : [];
}

function text(value: unknown): string {
  return typeof value === "string" ? value : value === undefined ? "" : JSON.stringify(value);
}

function number(value: unknown): number {
  return typeof value === "number" ? value : 0;
}
