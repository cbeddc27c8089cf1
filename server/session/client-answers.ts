/**
 * What clients say about calls (pure): a word that stands already is answered with its receipt, one that cannot mean anything
 * any more is refused (R23). Whether the log is still as it was read is checked by the append.
 */
import { invalidField, TendonError } from "../../kit/errors.ts";
import type { CallAnswer, ClientCall } from "../store/client-calls.ts";
import { ANSWER_FIELDS } from "../store/event-facts.ts";
import type { NewEvent } from "../store/events.ts";

const CONFIRMATION = "user.tool_confirmation";

/** Event ids of the calls that these events speak of, each once. */
export function spokenOf(events: readonly NewEvent[]): string[] {
  const ids = events.flatMap((event) => callOf(event) ?? []);
  return [...new Set(ids)];
}

/**
 * For each event the answer that already says the same, or for a worker's result any that stands; undefined for those that
 * are to be appended. Throws
 * CALL_ALREADY_ANSWERED and INVALID_FIELD with the event's path.
 */
export function repeatsOf(
  events: readonly NewEvent[],
  calls: readonly ClientCall[],
  isWorker = false,
): (CallAnswer | undefined)[] {
  const byId = new Map(calls.map((call) => [call.eventId, call]));
  const confirmed = new Map<string, number>();
  return events.map((event, at) => {
    const callId = callOf(event);
    const call = callId === undefined ? undefined : byId.get(callId);
    // A call that is not there is refused by the append, as any answer to it.
    if (call === undefined) return undefined;
    if (event.type !== CONFIRMATION) return repeatOfResult(event, call, at, isWorker);
    const earlier = confirmed.get(call.eventId);
    if (earlier !== undefined)
      throw invalidField(`events[${at}].payload.tool_use_id`, `events[${earlier}] confirms the same call`);
    confirmed.set(call.eventId, at);
    return repeatOfConfirmation(event, call, at);
  });
}

function callOf({ type, payload }: NewEvent): string | undefined {
  const field = type === CONFIRMATION ? "tool_use_id" : ANSWER_FIELDS[type];
  if (field === undefined) return undefined;
  const id = (JSON.parse(payload) as Record<string, unknown>)[field];
  return typeof id === "string" ? id : undefined;
}

function repeatOfResult(
  event: NewEvent,
  call: ClientCall,
  at: number,
  isWorker: boolean,
): CallAnswer | undefined {
  const isCustom = event.type === "user.custom_tool_result";
  if (isCustom !== (call.type === "agent.custom_tool_use")) {
    const path = `events[${at}].payload.${ANSWER_FIELDS[event.type]}`;
    const why = isCustom ? "is no call of a custom tool" : "is answered with user.custom_tool_result";
    throw invalidField(path, why);
  }
  const runner = platformRunner(call);
  if (runner !== undefined) {
    const path = `events[${at}].payload.${ANSWER_FIELDS[event.type]}`;
    throw invalidField(path, `is a call that ${runner}`);
  }
  const { result } = call;
  if (result === undefined || result.eventId === event.id) return undefined;
  // Workers repeat what is refused: theirs changes nothing any more, and they are told what stands.
  if (isWorker) return result;
  // With another content the append says that there is one.
  return saysTheSame(result, event, ["content", "is_error"]) ? result : undefined;
}

function repeatOfConfirmation(event: NewEvent, call: ClientCall, at: number): CallAnswer | undefined {
  const { confirmation, result } = call;
  const path = `events[${at}].payload.tool_use_id`;
  if (call.type === "agent.custom_tool_use")
    throw invalidField(path, "is a call of a custom tool: user.custom_tool_result answers it");
  if (confirmation !== undefined) {
    if (confirmation.eventId === event.id) return undefined;
    if (saysTheSame(confirmation, event, ["result", "deny_message"])) return confirmation;
    throw answered(at, call, confirmation, "was confirmed already, with another word");
  }
  if (result !== undefined) throw answered(at, call, result, "has a result already");
  const { evaluated_permission: permission } = JSON.parse(call.payload) as Record<string, unknown>;
  if (permission === "allow" || permission === "deny")
    throw invalidField(path, "is a call that waits for no confirmation");
  return undefined;
}

/** Who of the platform runs a call that is no hand's. */
const RUNNERS: Readonly<Record<string, string>> = {
  brain: "the brain runs itself",
  proxy: "the proxy runs",
};

function platformRunner({ type, payload }: ClientCall): string | undefined {
  if (type !== "agent.tool_use") return undefined;
  const { runs_in: runsIn } = JSON.parse(payload) as Record<string, unknown>;
  return typeof runsIn === "string" && Object.hasOwn(RUNNERS, runsIn) ? RUNNERS[runsIn] : undefined;
}

function saysTheSame(answer: CallAnswer, { type, payload }: NewEvent, fields: readonly string[]): boolean {
  if (answer.type !== type) return false;
  const [one, other] = [answer.payload, payload].map((text) => JSON.parse(text) as Record<string, unknown>);
  // Null, absent and false are all "not said".
  const said = (value: unknown) => JSON.stringify(value || null);
  return fields.every((field) => said(one?.[field]) === said(other?.[field]));
}

function answered(at: number, call: ClientCall, by: CallAnswer, what: string): TendonError {
  return new TendonError("CALL_ALREADY_ANSWERED", `events[${at}]: the call "${call.eventId}" ${what}`, {
    field: `events[${at}]`,
    tool_use_id: call.eventId,
    event_id: by.eventId,
    position: String(by.position),
  });
}
