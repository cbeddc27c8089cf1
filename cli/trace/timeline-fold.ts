/** Takes in a log event by event, and keeps what has begun and not ended. */
import type { FailureOrigin, Part } from "../../kit/errors.ts";
import { consumedIds, type Json, objectOf, payloadOf, stringOf } from "../event-payload.ts";
import { countOf, nameOf, originOf, traceIdOf, wordOf } from "./event-facts.ts";
import type { LogEvent, Step, Turn } from "./timeline.ts";

interface Open {
  readonly part: Part;
  readonly what: string;
  readonly startMs: number;
  readonly from: number;
}

/** What waits for a client rather than for the platform. */
const REST = "rest";
/** A client said something that a brain has to take in. */
const INPUTS = new Set([
  "user.message",
  "user.define_outcome",
  "user.interrupt",
  "system.message",
  "agent.thread_message_received",
]);
const ANSWERS = new Set(["user.tool_confirmation", "user.custom_tool_result", "user.tool_result"]);
const RESULTS: Readonly<Record<string, string>> = {
  "agent.tool_result": "tool_use_id",
  "agent.mcp_tool_result": "mcp_tool_use_id",
  "user.custom_tool_result": "custom_tool_use_id",
  "user.tool_result": "tool_use_id",
};
/** An error without a code, of a log of before. */
const UNKNOWN: FailureOrigin = { part: "server", reason: "UNKNOWN" };

export class TimelineFold {
  private readonly steps: Step[] = [];
  private readonly turns: Turn[] = [];
  private readonly open = new Map<string, Open>();
  private turn = 0;

  apply(event: LogEvent): void {
    const payload = payloadOf(event);
    if (INPUTS.has(event.type)) this.input(event);
    else if (ANSWERS.has(event.type)) this.answered(event, payload);
    else this.own(event, payload);
    const idField = RESULTS[event.type];
    if (idField !== undefined) this.result(event, stringOf(payload[idField]), payload);
  }

  end(): { turns: Turn[]; steps: Step[] } {
    for (const { part, what, startMs, from } of this.open.values()) {
      this.steps.push({ part, what, startMs, endMs: undefined, from, to: undefined, turn: this.turn });
    }
    return { turns: this.turns, steps: this.steps };
  }

  private input(event: LogEvent): void {
    this.close(REST, event);
    const isInTurn = this.turns.at(-1)?.endMs === undefined && this.turns.length > 0;
    this.point(event, "client", event.type, undefined, isInTurn ? this.turn : this.turn + 1);
    this.begin(`input ${event.id}`, event, "harness", "waits for a brain");
  }

  private answered(event: LogEvent, payload: Json): void {
    this.close(REST, event);
    this.point(event, payload.timed_out === true ? "server" : "client", event.type);
    if (event.type !== "user.tool_confirmation") return;
    // Waiting was the client's; what follows is the tool's.
    const key = `call ${stringOf(payload.tool_use_id)}`;
    const call = this.open.get(key);
    if (call !== undefined) this.open.set(key, { ...call, startMs: event.atMs, from: event.position });
  }

  private own(event: LogEvent, payload: Json): void {
    switch (event.type) {
      case "session.status_running":
        this.close(REST, event);
        return;
      case "brain.inputs_consumed":
        this.consumed(event, payload);
        return;
      case "span.model_request_start":
        this.close("retry", event);
        this.begin(`span ${event.id}`, event, "model", nameOf(payload.model, "model"));
        return;
      case "span.model_request_end": {
        const failure = payload.is_error === true ? (originOf(payload.failure) ?? UNKNOWN) : undefined;
        this.close(`span ${stringOf(payload.model_request_start_id)}`, event, failure);
        this.close("judging", event, failure);
        return;
      }
      case "brain.judging_began":
        // The answer is whole by then, and becomes part of the log with the verdicts.
        this.close(`span ${stringOf(payload.model_request_start_id)}`, event);
        this.begin("judging", event, "model", `${nameOf(payload.model, "model")} judges calls`);
        return;
      case "span.outcome_evaluation_start":
        this.begin(`span ${event.id}`, event, "model", `judges with ${nameOf(payload.model, "model")}`);
        return;
      case "span.outcome_evaluation_end":
        this.close(`span ${stringOf(payload.outcome_evaluation_start_id)}`, event);
        return;
      case "agent.tool_use":
      case "agent.custom_tool_use":
      case "agent.mcp_tool_use":
        this.begin(`call ${event.id}`, event, partOfCall(event.type, payload), nameOf(payload.name, "tool"));
        return;
      case "hand.provisioned":
        this.provisioned(event, payload);
        return;
      case "hand.lost":
        this.point(event, "hand_agent", "hand lost", originOf(payload.failure) ?? UNKNOWN);
        return;
      case "session.error":
        this.failed(event, objectOf(payload.error));
        return;
      case "session.status_rescheduled": {
        const reason = originOf(payload.reason);
        if (reason?.reason === "NO_LIVE_LEASE") this.point(event, "harness", "found without a brain", reason);
        this.begin("retry", event, "harness", "waits to try again");
        return;
      }
      case "session.status_idle":
        this.idle(event, payload);
        return;
    }
  }

  private consumed(event: LogEvent, payload: Json): void {
    const turn = countOf(payload.turn);
    const isNew = turn > this.turn;
    this.turn = Math.max(this.turn, turn);
    for (const id of consumedIds(event)) this.close(`input ${id}`, event);
    if (!isNew) return;
    const { atMs: startMs } = event;
    const traceId = traceIdOf(payload.trace_id);
    this.turns.push({ turn, traceId, startMs, endMs: undefined, stopReason: "" });
  }

  private result(event: LogEvent, callId: string, payload: Json): void {
    // Of a result that is too large to be shown only the order tells whose it is.
    const key =
      callId === "" ? [...this.open.keys()].find((one) => one.startsWith("call ")) : `call ${callId}`;
    if (key === undefined) return;
    if (event.type === "agent.mcp_tool_result") this.passed(key, event, payload);
    this.close(key, event, payload.is_error === true ? (originOf(payload.failure) ?? UNKNOWN) : undefined);
  }

  /**
   * What of an MCP call was not the MCP server's is the proxy's: it finds server and credential, records the call and stores
   * its result. When within the call the server had it the log does not say; it is drawn at its end.
   */
  private passed(key: string, event: LogEvent, payload: Json): void {
    const call = this.open.get(key);
    if (call === undefined || typeof payload.upstream_ms !== "number") return;
    const sentMs = Math.min(Math.max(event.atMs - payload.upstream_ms, call.startMs), event.atMs);
    const { startMs, from } = call;
    const { position: to } = event;
    this.steps.push({
      part: "proxy",
      what: "passes the call on",
      startMs,
      endMs: sentMs,
      from,
      to,
      turn: this.turn,
    });
    this.open.set(key, { ...call, startMs: sentMs });
  }

  /** It was made for a call that had to wait for it; the call's own time begins now. */
  private provisioned(event: LogEvent, payload: Json): void {
    const waiting = [...this.open].find(([key, { part }]) => key.startsWith("call ") && part === "sandbox");
    const driver = nameOf(payload.driver, "");
    const what = driver === "" ? "makes a hand" : `makes a hand (${driver})`;
    if (waiting === undefined) {
      this.point(event, "hand_agent", what);
      return;
    }
    const [key, call] = waiting;
    this.steps.push({
      part: "hand_agent",
      what,
      startMs: call.startMs,
      endMs: event.atMs,
      from: call.from,
      to: event.position,
      turn: this.turn,
    });
    this.open.set(key, { ...call, startMs: event.atMs });
  }

  private failed(event: LogEvent, error: Json): void {
    const origin = originOf(error) ?? UNKNOWN;
    const status = wordOf(objectOf(error.retry_status).type);
    // A model's failure is told by its request already.
    if (origin.part === "model" && status === "retrying") return;
    this.point(event, origin.part, status === "exhausted" ? "given up" : "trouble", origin);
  }

  private idle(event: LogEvent, payload: Json): void {
    this.close("retry", event);
    const reason = wordOf(objectOf(payload.stop_reason).type);
    const waits = reason === "requires_action" ? "answer awaited" : "at rest";
    this.begin(REST, event, "client", waits);
    const last = this.turns.at(-1);
    if (last === undefined) return;
    this.turns[this.turns.length - 1] = { ...last, endMs: event.atMs, stopReason: reason };
  }

  private begin(key: string, event: LogEvent, part: Part, what: string): void {
    this.open.set(key, { part, what, startMs: event.atMs, from: event.position });
  }

  private close(key: string, event: LogEvent, failure?: FailureOrigin): void {
    const step = this.open.get(key);
    if (step === undefined) return;
    this.open.delete(key);
    const { atMs: endMs, position: to } = event;
    this.steps.push({ ...step, endMs, to, turn: this.turn, failure });
  }

  private point(
    event: LogEvent,
    part: Part,
    what: string,
    failure?: FailureOrigin,
    turn: number = this.turn,
  ): void {
    const { atMs, position } = event;
    this.steps.push({
      part,
      what,
      startMs: atMs,
      endMs: atMs,
      from: position,
      to: position,
      turn,
      failure,
    });
  }
}

function partOfCall(type: string, payload: Json): Part {
  if (type === "agent.custom_tool_use") return "client";
  if (type === "agent.mcp_tool_use") return "upstream";
  if (payload.runs_in === "proxy") return "upstream";
  return payload.runs_in === "brain" ? "harness" : "sandbox";
}
