/**
 * Where a brain's steps stand in traces: one turn, one trace. It goes on from the trace of the event that the turn began
 * with; that of an event which came without one follows from its id, and the log says it (`brain.inputs_consumed`), so that
 * the next holder puts its steps into the same trace.
 */
import {
  parseTraceParent,
  type Span,
  type SpanOptions,
  type TraceContext,
  type Tracing,
  traceHeaders,
  traceOfEvent,
} from "../kit/trace.ts";
import { HARNESS_GONE, INTERRUPTED, modelOrigin } from "./brain-events.ts";
import type { LoopOutcome } from "./loops/loop.ts";
import type { OpenCall, SessionState, WaitingInput } from "./session-state.ts";
import type { TextAnswer } from "./text-model.ts";

export interface TurnTraceOptions {
  readonly tracing: Tracing;
  readonly sessionId: string;
  readonly epoch: bigint;
}

export class TurnTrace {
  private readonly options: TurnTraceOptions;
  private span: Span | undefined;
  private current: TraceContext | undefined;

  constructor(options: TurnTraceOptions) {
    this.options = options;
  }

  /** For calls that belong to the turn. */
  get headers(): Record<string, string> {
    return traceHeaders(this.current);
  }

  /** Undefined before a turn has begun. */
  get context(): TraceContext | undefined {
    return this.current;
  }

  /** A request of this turn is about to be sent, with what it takes in. */
  asks(ask: { readonly turn: number; readonly inputs: readonly WaitingInput[] }, state: SessionState): void {
    const [first] = ask.inputs;
    if (first === undefined || (ask.turn === state.turn && state.trace !== undefined)) {
      this.goesOn(state);
      return;
    }
    const given = ask.inputs.find(({ traceParent }) => traceParent !== "");
    const parent = parseTraceParent(given?.traceParent);
    this.begin(parent, ask.turn, parent ?? traceOfEvent(first.eventId));
  }

  /** The turn that the log is in, whoever began it. */
  goesOn(state: SessionState): void {
    if (this.current !== undefined || state.trace === undefined) return;
    this.begin(state.trace, state.turn, state.trace);
  }

  /** One attempt at a model. */
  modelRequest(model: string, run: () => Promise<LoopOutcome | undefined>): Promise<LoopOutcome | undefined> {
    return this.attempt("model request", model, run);
  }

  /** One attempt at a grader. */
  graderRequest(model: string, run: () => Promise<TextAnswer | undefined>): Promise<TextAnswer | undefined> {
    return this.attempt("grader request", model, run);
  }

  /** Models that are asked whether calls of one answer may run. */
  async judging(model: string, calls: number, run: () => Promise<void>): Promise<void> {
    const attributes = {
      "gen_ai.operation.name": "chat",
      "gen_ai.request.model": model,
      "tendon.purpose": "permission",
      "tendon.judged_calls": calls,
    };
    const span = this.start("model request", { kind: "client", attributes });
    try {
      await run();
    } finally {
      span.end();
    }
  }

  /** A call that a hand or an MCP server runs; `run` gets headers for whoever is asked to. */
  async sentCall<T>(
    call: OpenCall,
    run: (headers: Readonly<Record<string, string>>) => Promise<T>,
  ): Promise<T> {
    const span = this.startCall(call, "client");
    try {
      return await run(traceHeaders(span.context));
    } finally {
      span.end();
    }
  }

  /** A call that the harness runs itself. */
  async brainCall<T>(call: OpenCall, run: () => Promise<T>): Promise<T> {
    const span = this.startCall(call, "internal");
    try {
      return await run();
    } finally {
      span.end();
    }
  }

  /** The holder is through with the turn, or has lost it. */
  end(): void {
    this.span?.end();
    this.span = undefined;
    this.current = undefined;
  }

  private async attempt<T extends LoopOutcome | TextAnswer>(
    name: string,
    model: string,
    run: () => Promise<T | undefined>,
  ): Promise<T | undefined> {
    const attributes = { "gen_ai.operation.name": "chat", "gen_ai.request.model": model };
    const span = this.start(name, { kind: "client", attributes });
    try {
      const outcome = await run();
      if (outcome === undefined) span.end(INTERRUPTED);
      else if (outcome.kind === "failed") span.end(modelOrigin(outcome.failure));
      else if (outcome.kind !== "context_changed") {
        const { usage } = outcome.kind === "response" ? outcome.response : outcome;
        span.set({
          "gen_ai.usage.input_tokens": usage.inputTokens,
          "gen_ai.usage.output_tokens": usage.outputTokens,
        });
      }
      span.end();
      return outcome;
    } catch (error) {
      span.end(HARNESS_GONE);
      throw error;
    }
  }

  private startCall({ eventId, name }: OpenCall, kind: "client" | "internal"): Span {
    const attributes = {
      "gen_ai.operation.name": "execute_tool",
      "gen_ai.tool.name": name,
      "tendon.tool_use_id": eventId,
    };
    return this.start("tool call", { kind, attributes });
  }

  private start(name: string, options: Omit<SpanOptions, "parent">): Span {
    return this.options.tracing.start(name, { ...options, parent: this.current });
  }

  private begin(parent: TraceContext | undefined, turn: number, unrecorded: TraceContext): void {
    this.end();
    const { tracing, sessionId, epoch } = this.options;
    const attributes = { "tendon.session_id": sessionId, "tendon.turn": turn, "tendon.epoch": Number(epoch) };
    this.span = tracing.start("turn", { parent, attributes });
    this.current = this.span.context ?? unrecorded;
  }
}
