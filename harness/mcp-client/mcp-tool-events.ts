/** What the log says of MCP servers' tools: which lists a session works with, and which servers could not be had (pure). */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { Event, EventInput } from "../../proto/gen/tendon/v1/event_pb.js";
import { brainEvent } from "../brain-events.ts";
import { isObject, objectsOf, parseObject, stringOf, stringsOf } from "../event-payload.ts";
import { originOfProblem } from "./mcp-problem.ts";
import { type McpOpening, type McpTool, WITHOUT_SESSIONS } from "./mcp-server-client.ts";
import type { ListedServer } from "./mcp-servers.ts";

export const TOOLS_LISTED = "brain.tools_listed";
const AUTHENTICATION_FAILED = "mcp_authentication_failed_error";
const CONNECTION_FAILED = "mcp_connection_failed_error";

/** One batch: errors for people, and the record for whoever holds the session next. */
export function listedEvents(
  listed: readonly ListedServer[],
  turn: number,
  newId: () => string,
): EventInput[] {
  const errors = listed.flatMap((server) => ("problem" in server ? [errorEvent(server, newId)] : []));
  const servers = listed.map((server) => {
    if ("problem" in server) return { mcp_server_name: server.name, error: server.problem.type };
    return { mcp_server_name: server.name, tools: server.tools.map(({ name }) => name) };
  });
  const lists = listed.flatMap((server) => ("tools" in server ? [[server.name, server.tools] as const] : []));
  const opened = listed.flatMap((server) =>
    "tools" in server ? [[server.name, server.opened] as const] : [],
  );
  const sessions = opened.map(([name, { mcpSessionId }]) => [name, mcpSessionId] as const);
  const alone = opened.filter(([, { wire }]) => wire === WITHOUT_SESSIONS).map(([name]) => name);
  const internal = {
    v: 1,
    tools: Object.fromEntries(lists),
    mcp_sessions: Object.fromEntries(sessions),
    ...(alone.length > 0 && { without_sessions: alone }),
  };
  return [...errors, brainEvent(newId(), TOOLS_LISTED, { servers, turn }, internal)];
}

function errorEvent(
  { name, problem }: Extract<ListedServer, { problem: unknown }>,
  newId: () => string,
): EventInput {
  const isAuthentication = problem.type === AUTHENTICATION_FAILED;
  const type = isAuthentication ? AUTHENTICATION_FAILED : CONNECTION_FAILED;
  return serverError(name, { type, message: problem.message, ...originOfProblem(problem) }, newId);
}

/** What a call has met at a server that had told its tools before. */
export interface McpTrouble extends FailureOrigin {
  readonly type: string;
  readonly message: string;
}

/** Of the result of a call; undefined where the way to the server was open. */
export function troubleOf(event: Event): McpTrouble | undefined {
  const { failure, content } = parseObject(event.payload);
  if (!isObject(failure) || failure.part !== "upstream") return undefined;
  const [first] = objectsOf(content);
  const message = stringOf(first?.text);
  switch (failure.reason) {
    case "MCP_AUTHENTICATION_FAILED":
      return { type: AUTHENTICATION_FAILED, message, part: "upstream", reason: failure.reason };
    case "MCP_CONNECTION_FAILED":
      return { type: CONNECTION_FAILED, message, part: "upstream", reason: failure.reason };
    default:
      return undefined;
  }
}

/** For people and clients, who would see nothing but results that failed. */
export function troubleEvents(troubles: ReadonlyMap<string, McpTrouble>, newId: () => string): EventInput[] {
  return [...troubles].map(([server, trouble]) => serverError(server, trouble, newId));
}

/** The server's name, where the error is about one; else empty. */
export function serverOfError(event: Event): string {
  const { error } = parseObject(event.payload);
  return isObject(error) ? stringOf(error.mcp_server_name) : "";
}

function serverError(name: string, trouble: McpTrouble, newId: () => string): EventInput {
  const { type, message, part, reason } = trouble;
  const error = { type, message, mcp_server_name: name, retry_status: { type: "retrying" }, part, reason };
  return brainEvent(newId(), "session.error", { error });
}

/** By server; undefined for one that could not be had, with the turn in which that was. */
export interface KnownServer {
  readonly tools: readonly McpTool[] | undefined;
  readonly turn: number;
  /** An MCP session that its server has forgotten is opened anew. */
  readonly opened: McpOpening;
}

/** Of one such event. */
export function listedServers(event: Event): [name: string, known: KnownServer][] {
  const { servers, turn } = parseObject(event.payload);
  const { tools: lists, mcp_sessions: sessions, without_sessions: alone } = parseObject(event.internal);
  return objectsOf(servers).map(({ mcp_server_name: name }) => {
    const list = isObject(lists) ? lists[stringOf(name)] : undefined;
    const tools = Array.isArray(list) ? objectsOf(list).map(toolOf) : undefined;
    const mcpSessionId = isObject(sessions) ? stringOf(sessions[stringOf(name)]) : "";
    const wire = stringsOf(alone).includes(stringOf(name)) ? WITHOUT_SESSIONS : "2025-11-25";
    const opened = { wire, mcpSessionId } as const;
    return [stringOf(name), { tools, turn: typeof turn === "number" ? turn : 0, opened }];
  });
}

function toolOf({ name, description, inputSchema }: Readonly<Record<string, unknown>>): McpTool {
  return {
    name: stringOf(name),
    description: stringOf(description),
    inputSchema: stringOf(inputSchema) || '{"type":"object"}',
  };
}
