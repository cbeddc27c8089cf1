/**
 * Which calls of an answer may run, where their policy is `auto`. What was judged, and what that cost, is appended together
 * with the calls: whoever goes on from the log judges nothing again, and nobody runs a call whose verdict is not there.
 */
import type { Agent } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { EventInput } from "../../proto/gen/tendon/v1/event_pb.js";
import { brainEvent, INTERRUPTED, INTERRUPTED_TEXT, usageFields } from "../brain-events.ts";
import { spentBudget } from "../budget.ts";
import { callTarget } from "../call-target.ts";
import type { Lease } from "../lease.ts";
import type { LogWriter } from "../log-writer.ts";
import type { ProposedResponse } from "../loops/loop.ts";
import type { SessionTools } from "../session-tools.ts";
import type { SessionView } from "../session-view.ts";
import type { ToolCatalogue } from "../tool-catalogue.ts";
import type { TurnTrace } from "../turn-trace.ts";
import { untilInterrupted } from "../until-interrupted.ts";
import type { CallJudge, Judgement } from "./call-judge.ts";
import { type CallVerdict, NOT_JUDGED } from "./call-verdict.ts";
import type { JudgedCall } from "./judge-question.ts";

export interface AnswerPermissionOptions {
  readonly judge: CallJudge | undefined;
  readonly agent: Agent;
  readonly lease: Lease;
  readonly view: SessionView;
  readonly writer: LogWriter;
  readonly tools: SessionTools;
  readonly trace: TurnTrace;
  /** Aborts when the program stops and what could finish quickly has had its time. */
  readonly draining: AbortSignal;
}

export interface JudgedAnswer {
  /** By the event ids of the calls. */
  readonly verdicts: ReadonlyMap<string, CallVerdict>;
  /** What the log is to say of them, in the batch of the answer. */
  readonly events: readonly EventInput[];
}

const NOTHING_JUDGED: JudgedAnswer = { verdicts: new Map(), events: [] };
const CUT_SHORT: Judgement = {
  verdict: { type: "deny", code: "indeterminate", denial: { ...INTERRUPTED, text: INTERRUPTED_TEXT } },
  why: "a client interrupted the turn",
};

export class AnswerPermission {
  private readonly options: AnswerPermissionOptions;

  constructor(options: AnswerPermissionOptions) {
    this.options = options;
  }

  /** Of an answer that is not in the log yet. When a client interrupts, what is not judged by then does not run. */
  async judge(response: ProposedResponse, spanId: string): Promise<JudgedAnswer> {
    const { judge, agent, tools } = this.options;
    const calls = judgedCalls(response, tools.catalogue);
    if (judge === undefined || calls.length === 0) return NOTHING_JUDGED;
    const model = judge.modelFor(agent.spec?.model?.id ?? "");
    if (!(await this.begin(calls, model, spanId))) {
      return this.answer(calls, () => ({ verdict: NOT_JUDGED, why: "the budget is spent" }));
    }
    const found = await this.ask(judge, calls, response, model);
    return this.answer(calls, ({ eventId }) => found.get(eventId) ?? CUT_SHORT);
  }

  /** False when the budget leaves no model to ask. */
  private async begin(calls: readonly JudgedCall[], model: string, spanId: string): Promise<boolean> {
    const { writer } = this.options;
    const payload = {
      tool_use_ids: calls.map(({ eventId }) => eventId),
      model,
      model_request_start_id: spanId,
    };
    try {
      await writer.append([brainEvent(writer.newEventId(), "brain.judging_began", payload)]);
      return true;
    } catch (error) {
      if (spentBudget(error) === undefined) throw error;
      return false;
    }
  }

  private async ask(
    judge: CallJudge,
    calls: readonly JudgedCall[],
    response: ProposedResponse,
    model: string,
  ): Promise<ReadonlyMap<string, Judgement>> {
    const { agent, lease, view, trace, draining } = this.options;
    const instructions = agent.spec?.system ?? "";
    const context = { instructions, history: view.history, answer: response.events };
    const found = new Map<string, Judgement>();
    await trace.judging(model, calls.length, async () => {
      await untilInterrupted({ lease, view }, draining, async (signal) => {
        await judge.judge(calls, context, model, signal, (call, judgement) => {
          found.set(call.eventId, judgement);
        });
      });
    });
    return found;
  }

  private answer(calls: readonly JudgedCall[], judgementOf: (call: JudgedCall) => Judgement): JudgedAnswer {
    const { writer } = this.options;
    const all = calls.map((call) => [call.eventId, judgementOf(call)] as const);
    return {
      verdicts: new Map(all.map(([eventId, { verdict }]) => [eventId, verdict])),
      events: all.map(([eventId, judgement]) => judgedEvent(writer.newEventId(), eventId, judgement)),
    };
  }
}

/** Calls that can run and whose policy leaves it to a model. */
function judgedCalls({ stop, events }: ProposedResponse, catalogue: ToolCatalogue): JudgedCall[] {
  if (stop.kind === "refusal") return [];
  return events.flatMap((event) => {
    if (event.kind !== "call") return [];
    const { tool, input, problem } = callTarget(event, catalogue);
    if (problem !== undefined || tool?.policy !== "auto") return [];
    return [{ eventId: event.eventId, tool, input }];
  });
}

function judgedEvent(id: string, callId: string, { verdict, why, asked, failure }: Judgement): EventInput {
  const { type } = verdict;
  return brainEvent(id, "brain.call_judged", {
    tool_use_id: callId,
    evaluated_permission: type === "allow" ? { type } : { type, reason_code: verdict.code },
    why,
    ...(asked && { model: asked.model, ...usageFields(asked.model, asked.usage) }),
    ...(failure && { failure }),
  });
}
