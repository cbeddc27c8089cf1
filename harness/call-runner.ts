/** Gives calls their results, side by side: runs those that may run, and says why the others do not (X3). */
import { type Clock, within } from "../kit/clock.ts";
import type { FailureOrigin } from "../kit/errors.ts";
import { failpoint } from "../kit/failpoint.ts";
import type { Logger } from "../kit/log.ts";
import type { Agent } from "../proto/gen/tendon/v1/agent_pb.js";
import type { EventInput } from "../proto/gen/tendon/v1/event_pb.js";
import type { SessionResource } from "../proto/gen/tendon/v1/session_pb.js";
import { errorResult, toolResult } from "./brain-events.ts";
import { BrainCalls } from "./brain-tools/brain-calls.ts";
import type { BrainTool } from "./brain-tools/brain-tool.ts";
import { HandCaller } from "./hand-caller.ts";
import type { Lease } from "./lease.ts";
import type { LogWriter } from "./log-writer.ts";
import type { McpServers } from "./mcp-client/mcp-servers.ts";
import { isRunnable } from "./next-step.ts";
import type { ServerClients } from "./server-clients.ts";
import type { OpenCall } from "./session-state.ts";
import type { SessionView } from "./session-view.ts";
import type { TurnTrace } from "./turn-trace.ts";
import type { WebCaller } from "./web/web-caller.ts";

export interface CallRunnerOptions {
  readonly server: ServerClients;
  readonly agent: Agent;
  /** What the session was given. */
  readonly resources: readonly SessionResource[];
  /** Those that the harness runs itself. */
  readonly brainTools: ReadonlyMap<string, BrainTool>;
  readonly mcp: McpServers;
  readonly web: WebCaller;
  readonly lease: Lease;
  readonly view: SessionView;
  readonly writer: LogWriter;
  readonly clock: Clock;
  readonly log: Logger;
  readonly trace: TurnTrace;
}

/** A cancelled call's processes are killed within 3 s; after this its result is written here. */
const CANCELLED_RESULT_WAIT_MS = 5_000;

export class CallRunner {
  private readonly options: CallRunnerOptions;
  private readonly hands: HandCaller;
  private readonly brain: BrainCalls;
  /** Calls that the server answers some time. */
  private readonly pending = new Set<string>();
  /** Calls that workers of a self-hosted environment answer. */
  private readonly offered = new Set<string>();

  constructor(options: CallRunnerOptions) {
    this.options = options;
    const { server, agent, resources, brainTools: tools, lease, view, clock, log } = options;
    const { sessionId } = lease;
    this.hands = new HandCaller({ hands: server.hands, lease, view, clock, trace: options.trace });
    this.brain = new BrainCalls({ tools, sessionId, agent, resources, view, server, lease, clock, log });
  }

  /** Resolves when no call is left that can get its result without a client; also takes up calls that become so meanwhile. */
  async run(signal: AbortSignal): Promise<void> {
    const { view } = this.options;
    this.pending.clear();
    this.offered.clear();
    const isLeft = ({ eventId }: OpenCall) => this.pending.has(eventId) || this.offered.has(eventId);
    const running = new Map<string, Promise<void>>();
    for (;;) {
      for (const call of view.state.openCalls.values()) {
        if (!isRunnable(call) || running.has(call.eventId) || isLeft(call)) continue;
        const settled = this.settle(call, signal).then(() => {
          running.delete(call.eventId);
        });
        // A failure is seen by the race below; the others must not go unhandled.
        settled.catch(() => {});
        running.set(call.eventId, settled);
      }
      if (running.size === 0) return;
      const leave = new AbortController();
      const isNew = (call: OpenCall) => isRunnable(call) && !running.has(call.eventId) && !isLeft(call);
      const newCall = view.until(
        () => [...view.state.openCalls.values()].some(isNew),
        AbortSignal.any([signal, leave.signal]),
      );
      newCall.catch(() => {});
      await Promise.race([...running.values(), newCall]);
      leave.abort();
    }
  }

  /** Of the calls that were run, those that are open until the server answers them. */
  get waiting(): string[] {
    return [...this.pending].filter((id) => this.options.view.state.openCalls.has(id));
  }

  /** Of the calls that were run, those that are open until a worker answers them. */
  get withWorkers(): string[] {
    return [...this.offered].filter((id) => this.options.view.state.openCalls.has(id));
  }

  /** Cancels calls that may run somewhere, and waits a bounded time for the results that tell what happened. */
  async cancelAll(calls: readonly OpenCall[]): Promise<void> {
    const { view, lease, clock } = this.options;
    const allowed = calls.filter((call) => refusalOf(call) === undefined);
    const isExpected = await Promise.all(allowed.map((call) => this.placeOf(call)?.cancel(call) ?? false));
    const sent = allowed.filter((_, i) => isExpected[i]);
    if (sent.length === 0) return;
    const leave = new AbortController();
    const answered = view.until(
      () => sent.every(({ eventId }) => !view.state.openCalls.has(eventId)),
      AbortSignal.any([lease.signal, leave.signal]),
    );
    await within(clock, CANCELLED_RESULT_WAIT_MS, answered, () => new Error("late")).catch(() => {});
    leave.abort();
    lease.signal.throwIfAborted();
    await view.refresh();
  }

  /** Where a call runs that the harness does not run itself. */
  private placeOf(call: OpenCall): Pick<HandCaller | McpServers | WebCaller, "cancel"> | undefined {
    return this.proxied(call) ?? (call.kind === "hand" ? this.hands : undefined);
  }

  private proxied({ kind }: OpenCall): McpServers | WebCaller | undefined {
    if (kind === "web") return this.options.web;
    return kind === "mcp" ? this.options.mcp : undefined;
  }

  private async settle(call: OpenCall, signal: AbortSignal): Promise<void> {
    const refusal = refusalOf(call);
    if (refusal !== undefined) return this.refuse(call, refusal);
    if (call.kind === "brain") return this.runHere(call, signal);
    const proxied = this.proxied(call);
    const outcome = await (proxied === undefined
      ? this.hands.run(call, signal)
      : this.options.trace.sentCall(call, (headers) => proxied.run(call, signal, headers)));
    if (outcome.kind === "offered") this.offered.add(call.eventId);
    if (outcome.kind === "failed") await this.refuse(call, outcome);
  }

  private async runHere(call: OpenCall, signal: AbortSignal): Promise<void> {
    failpoint("harness.before_brain_call");
    const result = await this.options.trace.brainCall(call, () => this.brain.run(call, signal));
    failpoint("harness.brain_call_done");
    // An interrupt has said by now what became of it.
    signal.throwIfAborted();
    if (result.isPending) {
      this.pending.add(call.eventId);
      return;
    }
    await this.answer(call, (id) => toolResult(id, call, result));
  }

  private refuse(call: OpenCall, { text, ...failure }: Refusal): Promise<void> {
    const { part, reason } = failure;
    return this.answer(call, (id) => errorResult(id, call, text, { part, reason }));
  }

  /** One result for each call (X3): nothing when somebody else gave it. */
  private async answer(call: OpenCall, resultOf: (id: string) => EventInput): Promise<void> {
    const { writer, view } = this.options;
    const stillOpen = () => view.state.openCalls.has(call.eventId);
    await writer.appendAnswers(() => (stillOpen() ? [resultOf(writer.newEventId())] : []));
  }
}

/** Why a call has no result of its own: where it failed, and in words for the model. */
interface Refusal extends FailureOrigin {
  readonly text: string;
}

/** Why the call does not run; undefined when it may. */
function refusalOf(call: OpenCall): Refusal | undefined {
  if (call.permission === "deny") {
    const text = `"${call.name}" is not allowed, so it did not run.`;
    return { part: "client", reason: "NOT_ALLOWED", text };
  }
  if (call.confirmation?.allowed === false) {
    const why = call.confirmation.message;
    const text = why === "" ? "The user denied this call." : `The user denied this call: ${why}`;
    return { part: "client", reason: "DENIED", text };
  }
  return undefined;
}
