import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { formatTraceParent, NO_TRACING, traceOfEvent } from "../kit/trace.ts";
import { EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { requestEvents } from "./brain-events.ts";
import { applyEvent } from "./session-fold.ts";
import { newSessionState, type SessionState } from "./session-state.ts";
import { TurnTrace } from "./turn-trace.ts";

const CLIENT = { ...traceOfEvent("of a client"), sampled: true };

/** A session as its log has it, whose brain is whoever asks. */
class Log {
  readonly state: SessionState = newSessionState();
  private position = 0;

  append(event: {
    id: string;
    type: string;
    payload?: string;
    internal?: string;
    traceParent?: string;
  }): void {
    this.position += 1;
    applyEvent(this.state, create(EventSchema, { payload: "{}", ...event, position: BigInt(this.position) }));
  }

  say(id: string, traceParent = ""): void {
    this.append({ id, type: "user.message", traceParent });
  }

  /** What a holder appends before it asks its model in this turn. */
  ask(trace: TurnTrace, turn: number): void {
    const ask = { turn, inputs: [...this.state.waiting] };
    trace.asks(ask, this.state);
    let ids = 0;
    const events = requestEvents(this.state, ask, "m", () => `sevt_brain${++ids}`, trace.context);
    for (const { id, type, payload, internal } of events) this.append({ id, type, payload, internal });
  }
}

const holder = () => new TurnTrace({ tracing: NO_TRACING, sessionId: "sesn_1", epoch: 1n });

describe("the trace of a turn", () => {
  test("is that of the first message which came with one", () => {
    const log = new Log();
    log.say("sevt_1");
    log.say("sevt_2", formatTraceParent(CLIENT));
    const trace = holder();
    log.ask(trace, 1);
    expect(trace.context).toEqual(CLIENT);
    expect(trace.headers).toEqual({ traceparent: formatTraceParent(CLIENT) });
    expect(log.state.trace).toEqual(CLIENT);
  });

  test("follows from the first message's id when none did", () => {
    const log = new Log();
    log.say("sevt_1");
    const trace = holder();
    expect(trace.headers).toEqual({});
    log.ask(trace, 1);
    expect(trace.context).toEqual(traceOfEvent("sevt_1"));
  });

  test("goes on with the next holder, and with messages that come during the turn", () => {
    const log = new Log();
    log.say("sevt_1", formatTraceParent(CLIENT));
    log.ask(holder(), 1);
    const next = holder();
    next.goesOn(log.state);
    expect(next.context).toEqual(CLIENT);
    log.say("sevt_2", formatTraceParent(traceOfEvent("another")));
    const third = holder();
    log.ask(third, 1);
    expect(third.context).toEqual(CLIENT);
  });

  test("is a new one for the next turn", () => {
    const log = new Log();
    log.say("sevt_1", formatTraceParent(CLIENT));
    const trace = holder();
    log.ask(trace, 1);
    log.say("sevt_2");
    log.ask(trace, 2);
    expect(trace.context).toEqual(traceOfEvent("sevt_2"));
  });

  test("is none in a log of before that says nothing of it", () => {
    const log = new Log();
    log.say("sevt_1");
    log.append({ id: "sevt_b", type: "brain.inputs_consumed", payload: '{"event_ids":["sevt_1"],"turn":1}' });
    const trace = holder();
    trace.goesOn(log.state);
    expect(trace.context).toBeUndefined();
  });
});
