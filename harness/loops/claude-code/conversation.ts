/**
 * One running program of the SDK, in the middle of its own loop. It asks its model when a step begins and waits in its
 * hooks when its model has called tools: until the next step, which brings the results that the log has.
 */
import { type Clock, within } from "../../../kit/clock.ts";
import { messageOf } from "../../../kit/errors.ts";
import { isObject, type Json, objectsOf, stringOf, stringsOf } from "../../event-payload.ts";
import type { KeptChild } from "../kept-children.ts";
import type { LoopOutcome, LoopTurn } from "../loop.ts";
import { AnswerReader } from "./answer-reader.ts";
import { mcpResult } from "./content.ts";
import { modelFailure, programFailure } from "./failures.ts";
import type { PromptQueue } from "./prompt-queue.ts";
import type { Query, SDKMessage } from "./sdk.ts";
import { catalogueName, type NamedTool, sdkName } from "./tool-names.ts";
import type { McpResult } from "./tool-server.ts";
import { type Entry, holdsCall, KEEPER, type LogReading, lean } from "./transcript.ts";
import type { TranscriptStore } from "./transcript-store.ts";
import type { Waiting } from "./waiting.ts";

export interface ConversationParts {
  readonly query: Query;
  readonly store: TranscriptStore;
  readonly prompts: PromptQueue;
  readonly results: Waiting<McpResult>;
  readonly tools: readonly NamedTool[];
  readonly clock: Clock;
  /** Kills the program; resolves when it is gone. */
  endProgram(): Promise<void>;
}

/** The step that runs. */
interface RunningStep {
  readonly reader: AnswerReader;
  settle(outcome: LoopOutcome): void;
  stirred(): void;
}

/** The transcript follows the stream by a tenth of a second; a line that has not come by then may be one too few. */
const LINES_WAIT_MS = 2_000;
/** Without the lines of its calls an answer is of no use. */
const CALLS_WAIT_MS = 10_000;
/** A program is not kept longer than this for calls that run; another one goes on where it stopped. */
const KEPT_WAITING_MS = 60_000;

export class Conversation implements KeptChild {
  private readonly parts: ConversationParts;
  private running: RunningStep | undefined;
  private steps = 0;
  private over = false;
  private problem: LoopOutcome | undefined;
  private stopWaiting = () => {};
  /** Calls of the newest answer, by the model's ids: what the program waits for. */
  private calls: readonly string[] = [];

  constructor(parts: ConversationParts) {
    this.parts = parts;
    void this.pump();
  }

  get isOver(): boolean {
    return this.over;
  }

  async end(): Promise<void> {
    this.over = true;
    this.stopWaiting();
    // First of all: a hook that fails, or an input that ends, is an answer to a program that lives, and it would go on.
    const gone = this.parts.endProgram();
    this.parts.results.fail(new Error("the program ends"));
    this.parts.prompts.end();
    await gone;
  }

  /** Whether the program, as it stands, can go on with what the log says. */
  canTake({ results, said }: LogReading): boolean {
    if (this.over) return false;
    if (this.calls.length === 0) return said.length > 0;
    return said.length === 0 && this.calls.every((id) => results.has(id));
  }

  /** The first step only waits: the program was started with all that there is. */
  async step(turn: LoopTurn, reading: LogReading): Promise<LoopOutcome> {
    const { clock } = this.parts;
    this.stopWaiting();
    let settle: (outcome: LoopOutcome) => void = () => {};
    const outcome = new Promise<LoopOutcome>((resolve) => {
      settle = resolve;
    });
    const reader = new AnswerReader({
      newEventId: turn.newEventId,
      preview: (preview) => turn.preview(preview),
      callBegan: (eventId, modelName) => turn.callBegan(eventId, modelName),
      nameOf: (name) => catalogueName(name, this.parts.tools),
    });
    let stopWatching = () => {};
    const stirred = () => {
      stopWatching();
      stopWatching = clock.after(turn.maxSilenceMs, () => settle(this.silent(turn.maxSilenceMs, reader)));
    };
    this.running = { reader, settle, stirred };
    stirred();
    if (this.problem !== undefined) settle(this.problem);
    if (this.steps > 0) this.tell(reading);
    this.steps += 1;
    try {
      return await outcome;
    } finally {
      stopWatching();
      this.running = undefined;
    }
  }

  private tell({ results, said }: LogReading): void {
    for (const id of this.calls) this.parts.results.give(id, mcpResult(results.get(id)!));
    this.calls = [];
    if (said.length > 0) this.parts.prompts.push(said.flatMap(({ content }) => content));
  }

  private async pump(): Promise<void> {
    let how = "it ended";
    try {
      for await (const message of this.parts.query) {
        if (this.over) break;
        await this.hear(message);
      }
    } catch (error) {
      how = messageOf(error).split("\n")[0]!.slice(0, 300);
    }
    this.finish(
      programFailure("LOOP_EXITED", `The agent SDK's program ended in the middle of its turn: ${how}.`),
    );
  }

  private async hear(message: SDKMessage): Promise<void> {
    this.running?.stirred();
    const said = message as unknown as Json;
    if (stringOf(said.parent_tool_use_id) !== "") return;
    if (said.type === "stream_event" && isObject(said.event)) {
      const { running } = this;
      if (running?.reader.take(said.event)) await this.propose(running);
      return;
    }
    if (said.type === "system" && said.subtype === "init") {
      this.checkTools(said.tools);
      return;
    }
    if (said.type === "assistant" && typeof said.error === "string") {
      const status = typeof said.api_error_status === "number" ? said.api_error_status : undefined;
      const error = { word: said.error, status, detail: textOf(said.message) };
      this.finish(modelFailure(error, this.running?.reader.began ?? false));
      return;
    }
    if (said.type === "result" && (said.is_error === true || stringOf(said.subtype).startsWith("error"))) {
      const why = `The agent SDK's program could not go on: ${stringOf(said.subtype)}.`;
      this.finish(programFailure("LOOP_EXITED", why));
    }
  }

  /** A program that begins without the session's tools would ask its model for an answer that cannot be used. */
  private checkTools(names: unknown): void {
    const offered = new Set(stringsOf(names));
    if (this.parts.tools.every(({ name }) => offered.has(sdkName(name)))) return;
    this.finish(
      programFailure("LOOP_NOT_STARTED", "The agent SDK's program began without the session's tools."),
    );
  }

  /** The answer is whole: proposed together with the lines that the program wrote about it. */
  private async propose({ reader, settle }: RunningStep): Promise<void> {
    if (!reader.isWhole) {
      // The program would go on from the piece, with a request that the log knows nothing of.
      this.finish(modelFailure({ word: "server_error", status: undefined, detail: "" }, true));
      return;
    }
    const response = reader.response();
    const calls = [...reader.callIds.values()];
    const isPlain = response.stop.kind === "done";
    // The program would ask its model again, about an answer that was cut or refused.
    if (!isPlain) await this.end();
    else if (!(await this.hasLines(reader))) {
      const message = "The agent SDK's program did not write down its model's answer.";
      this.finish(programFailure("LOOP_SILENT", message, { began: true }));
      return;
    }
    this.running = undefined;
    this.calls = calls;
    if (calls.length > 0 && isPlain) {
      this.stopWaiting = this.parts.clock.after(KEPT_WAITING_MS, () => void this.end());
    }
    const entries = isPlain ? lean(this.parts.store.takeUnsaved()) : [];
    const keep = { by: KEEPER, value: { v: 1, entries } };
    settle({ kind: "response", response: isPlain ? { ...response, keep } : response });
  }

  private async hasLines(reader: AnswerReader): Promise<boolean> {
    const { store } = this.parts;
    const { messageId, writtenBlocks } = reader;
    if (writtenBlocks === 0) return true;
    const calls = [...reader.callIds.values()];
    const hasAll = await this.added(LINES_WAIT_MS, () => store.linesOf(messageId).length >= writtenBlocks);
    return hasAll || this.added(CALLS_WAIT_MS, () => holdsAll(store.linesOf(messageId), calls));
  }

  /** Whether that holds in time, looked at whenever the program has written something. */
  private added(withinMs: number, check: () => boolean): Promise<boolean> {
    const { store, clock } = this.parts;
    let stop = () => {};
    const arrived = new Promise<boolean>((resolve) => {
      const look = () => check() && resolve(true);
      stop = store.onAdded(look);
      look();
    });
    return within(clock, withinMs, arrived, () => new Error("late"))
      .catch(() => false)
      .finally(stop);
  }

  private silent(maxSilenceMs: number, { began }: AnswerReader): LoopOutcome {
    void this.end();
    const message = `The model was silent for ${maxSilenceMs} ms.`;
    return {
      kind: "failed",
      failure: {
        type: "model_request_failed_error",
        message,
        maxAttempts: Number.POSITIVE_INFINITY,
        retryAfterMs: undefined,
        began,
      },
    };
  }

  /** Nothing more comes of this program. */
  private finish(outcome: LoopOutcome): void {
    this.problem ??= outcome;
    this.running?.settle(outcome);
    void this.end();
  }
}

function holdsAll(lines: readonly Entry[], callIds: readonly string[]): boolean {
  return lines.length > 0 && callIds.every((id) => lines.some((line) => holdsCall(line, id)));
}

function textOf(message: unknown): string {
  const content = isObject(message) ? objectsOf(message.content) : [];
  return content.map(({ text }) => stringOf(text)).join(" ");
}
