/** One running program of the `external` loop: it is told events and asked for steps, one at a time. */
import { type Clock, within } from "../../../kit/clock.ts";
import type { McpAddress } from "../../mcp-relay/session-relay.ts";
import type { KeptChild } from "../kept-children.ts";
import type { LoopOutcome, LoopTurn } from "../loop.ts";
import type { LoopProcess } from "../loop-process.ts";
import { LineReader } from "./line-reader.ts";
import { BadProgram, eventLine, faultOf, helloLine, StepReader, stepLine } from "./protocol.ts";

export interface StepSetting {
  readonly model: string;
  readonly keeper: string;
}

/** After a program has ended, what it wrote before is still read. */
const LAST_OUTPUT_MS = 2_000;

/** The step that runs. */
interface RunningStep {
  readonly reader: StepReader;
  settle(outcome: LoopOutcome): void;
  /** The program did something. */
  stirred(): void;
}

export class ExternalChild implements KeptChild {
  private readonly process: LoopProcess;
  private readonly mcpServers: readonly McpAddress[];
  private readonly clock: Clock;
  private readonly lines = new LineReader();
  private readonly outputEnded: Promise<void>;
  private running: RunningStep | undefined;
  private position = 0n;
  private steps = 0;
  private broken = false;

  constructor(process: LoopProcess, mcpServers: readonly McpAddress[], clock: Clock) {
    this.process = process;
    this.mcpServers = mcpServers;
    this.clock = clock;
    const { stdout } = process;
    this.outputEnded = new Promise((resolve) => stdout.once("close", () => resolve()));
    stdout.on("error", () => {});
    stdout.on("data", (chunk: Buffer) => this.hear(chunk));
    void process.ended.then((how) => this.exited(how));
  }

  get isOver(): boolean {
    return this.broken || this.process.isOver;
  }

  end(): Promise<void> {
    this.broken = true;
    return this.process.end();
  }

  /** Tells what is new in the history and takes what the program says to it. Never rejects; may leave the child over. */
  async step(turn: LoopTurn, { model, keeper }: StepSetting): Promise<LoopOutcome> {
    let settle: (outcome: LoopOutcome) => void = () => {};
    const outcome = new Promise<LoopOutcome>((resolve) => {
      settle = resolve;
    });
    const reader = new StepReader({
      keeper,
      newEventId: turn.newEventId,
      preview: (preview) => turn.preview(preview),
    });
    let stopWatching = () => {};
    const stirred = () => {
      stopWatching();
      stopWatching = this.clock.after(turn.maxSilenceMs, () => settle(this.silent(reader, turn)));
    };
    this.running = { reader, settle, stirred };
    stirred();
    let isSettled = false;
    void outcome.then(() => {
      isSettled = true;
    });
    const text = [...this.news(turn, model, keeper), stepLine(this.steps, turn.maxSilenceMs)];
    void this.tell(text, () => isSettled, stirred);
    try {
      return await outcome;
    } finally {
      stopWatching();
      this.running = undefined;
    }
  }

  private *news(turn: LoopTurn, model: string, keeper: string): Generator<string> {
    if (this.steps === 0) yield helloLine(turn, model, this.mcpServers);
    this.steps += 1;
    for (const event of turn.history) {
      if (event.position <= this.position) continue;
      this.position = event.position;
      yield eventLine(event, keeper);
    }
  }

  /** A program that does not read is as silent as one that does not write. */
  private async tell(lines: Iterable<string>, isOver: () => boolean, stirred: () => void): Promise<void> {
    const { stdin } = this.process;
    for (const line of lines) {
      if (isOver() || !stdin.writable) return;
      if (stdin.write(`${line}\n`)) continue;
      await new Promise<void>((resolve) => {
        const go = () => {
          stdin.off("drain", go).off("close", go);
          resolve();
        };
        stdin.once("drain", go).once("close", go);
      });
      stirred();
    }
  }

  private hear(chunk: Buffer): void {
    if (this.broken) return;
    try {
      for (const line of this.lines.take(chunk)) this.take(line);
    } catch (error) {
      if (!(error instanceof BadProgram)) throw error;
      this.fault(error);
    }
  }

  private take(line: string): void {
    const { running } = this;
    if (running === undefined) throw new BadProgram("LOOP_BAD_LINE", "it wrote a line between two steps");
    running.stirred();
    const outcome = running.reader.take(line);
    if (outcome === undefined) return;
    this.running = undefined;
    running.settle(outcome);
  }

  /** Between two steps nobody is told: the next one starts the program anew. */
  private fault({ reason, message }: BadProgram): void {
    const began = this.running?.reader.began ?? false;
    this.running?.settle(faultOf(reason, `The loop's program broke the protocol: ${message}.`, { began }));
    void this.end();
  }

  private silent({ began }: StepReader, { maxSilenceMs }: LoopTurn): LoopOutcome {
    void this.end();
    const message = `The loop's program was silent for ${maxSilenceMs} ms.`;
    return faultOf("LOOP_SILENT", message, { began });
  }

  private async exited(how: string): Promise<void> {
    await within(this.clock, LAST_OUTPUT_MS, this.outputEnded, () => new Error("still open")).catch(() => {});
    const { running } = this;
    running?.settle(
      faultOf("LOOP_EXITED", `The loop's program ended before its step did: ${how}.`, {
        began: running.reader.began,
      }),
    );
  }
}
