/** Which events of a log tell of a failure, and whether they say where it was and why. */
import { PARTS } from "../../kit/errors.ts";

type Payload = Record<string, unknown>;

const RESULTS = new Set([
  "agent.tool_result",
  "agent.mcp_tool_result",
  "user.custom_tool_result",
  "user.tool_result",
]);

/** What an event says of its failure; undefined when it tells of none. */
function originOf(type: string, payload: Payload): unknown {
  if (RESULTS.has(type) || type === "span.model_request_end") {
    return payload.is_error === true ? (payload.failure ?? "nothing") : undefined;
  }
  if (type === "hand.lost" || type === "hand.output_refused") return payload.failure ?? "nothing";
  if (type === "session.error") return payload.error ?? "nothing";
  if (type === "session.status_rescheduled") return payload.reason ?? "nothing";
  return undefined;
}

/** What a client's own results say is theirs to say. */
const isClients = ({ type, payload }: { type: string; payload: string }) => {
  const { timed_out: isLate, failure } = JSON.parse(payload || "{}") as Payload;
  if (type === "user.tool_result") return failure === undefined;
  return type === "user.custom_tool_result" && isLate !== true;
};

export function failuresOf(events: readonly { type: string; payload: string }[]): string[] {
  return events
    .filter((event) => !isClients(event))
    .flatMap(({ type, payload }) => {
      const origin = originOf(type, JSON.parse(payload || "{}") as Payload);
      if (origin === undefined) return [];
      const { part, reason } = (typeof origin === "object" ? origin : {}) as Payload;
      const isNamed = PARTS.some((known) => known === part) && /^[A-Z][A-Z0-9_]*$/.test(String(reason));
      return [isNamed ? `${part} ${reason}` : `${type}: not named, ${JSON.stringify(origin)}`];
    });
}
