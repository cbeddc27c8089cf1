/** What the proxy reads of a JSON-RPC message (pure). The rest is passed on as it stands. */
import { membersOf, memberText } from "../../kit/json-slices.ts";
import { McpRefusal } from "./refusal.ts";

export interface McpMessage {
  /** Undefined for a response of the client's. */
  readonly method: string | undefined;
  /** JSON text of the id; undefined for notifications. */
  readonly idText: string | undefined;
  /** Of `tools/call`. */
  readonly toolName: string | undefined;
  /** Of `notifications/cancelled`: JSON text of the request's id. */
  readonly cancels: string | undefined;
  /** The request goes on with answers to what the server asked before. */
  readonly goesOn: boolean;
  /** JSON text of `params._meta`, when it has one. */
  readonly metaText: string | undefined;
}

/** Throws an McpRefusal for what is no message, and for what two readers could read in two ways. */
export function readMessage(body: Buffer): McpMessage {
  const text = body.toString("utf8");
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw refused("the body must be JSON");
  }
  if (Array.isArray(value)) throw refused("a request holds one message; batches are not supported");
  if (!isRecord(value)) throw refused("the body must be a JSON-RPC message");
  const members = onceEach(text, "the message");
  const { method } = value;
  if (method !== undefined && typeof method !== "string") throw refused("method must be a string");
  const paramsText = members.get("params");
  const params = isRecord(value.params) ? value.params : {};
  const isCall = method === "tools/call";
  if (isCall && (typeof params.name !== "string" || params.name === "" || paramsText === undefined)) {
    throw refused("params.name must name the tool");
  }
  // Without an id it would be neither recorded nor answered, and some servers would run it all the same.
  if (isCall && members.get("id") === undefined) throw refused("a call of a tool needs an id");
  if (isCall) onceEach(paramsText!, "params");
  return {
    method,
    idText: members.get("id"),
    toolName: isCall ? (params.name as string) : undefined,
    cancels:
      method === "notifications/cancelled" && isRecord(value.params)
        ? memberText(paramsText!, "requestId")
        : undefined,
    goesOn: isCall && (params.inputResponses !== undefined || params.requestState !== undefined),
    metaText: isRecord(params._meta) ? memberText(paramsText!, "_meta") : undefined,
  };
}

/** Of a name that comes twice one reader takes the first value and another the last: then policy would hold for one alone. */
function onceEach(text: string, what: string): Map<string, string> {
  const seen = new Map<string, string>();
  for (const member of membersOf(text)) {
    if (seen.has(member.name)) throw refused(`${what} has the member ${JSON.stringify(member.name)} twice`);
    seen.set(member.name, member.text);
  }
  return seen;
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function refused(message: string): McpRefusal {
  return new McpRefusal(400, "invalid_request_error", message);
}
