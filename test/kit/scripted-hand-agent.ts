/**
 * The far side of the server's HandAgentService: a hand agent that speaks the real protocol over a real connection and
 * does what a test says. Its journal and its output survive reconnects, as a real agent's do.
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import type { BidiCall } from "../../kit/rpc/client.ts";
import {
  type CommandResultSchema,
  type ConnectRequestSchema,
  type ConnectResponse,
  type ConnectResponseSchema,
  type HandAgentGreetingSchema,
  HandAgentService,
  type ProvisionCommand,
  type StartExecution,
  type StreamExecutionRequestSchema,
  type StreamExecutionResponseSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import {
  ExecutionOutcome,
  type ExecutionResultSchema,
  HandState,
} from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "./eventually.ts";

type ResultInit = MessageInitShape<typeof ExecutionResultSchema>;

export interface ScriptedCall {
  readonly key: string;
  readonly name: string;
  readonly input: Record<string, unknown>;
  readonly handId: string;
  readonly ownerNumber: bigint;
  readonly timeoutMs: bigint;
  /** The hand had been parked: this call resumed it. */
  readonly resumed: boolean;
  /** Aborts when the server stops the call. */
  readonly signal: AbortSignal;
  write(data: Uint8Array | string): void;
}

export interface ScriptedAgentOptions {
  handAgentId: string;
  url: string;
  token: string;
  journalId?: string;
  run?: (call: ScriptedCall) => Promise<ResultInit> | ResultInit;
  onProvision?: (command: ProvisionCommand) => Promise<Partial<MessageInitShape<typeof CommandResultSchema>>>;
  greeting?: MessageInitShape<typeof HandAgentGreetingSchema>;
}

interface JournalEntry {
  readonly key: string;
  readonly start: StartExecution | undefined;
  readonly stop: AbortController;
  output: Buffer;
  outputBytes: number;
  result: ResultInit | undefined;
  changed: (() => void)[];
}

export const DEFAULT_TOOLS = [
  { name: "echo", description: "Says its text.", inputSchema: '{"type":"object"}' },
  { name: "bash", description: "Runs a command.", inputSchema: '{"type":"object"}' },
];

export function textResult(text: string, extra: Partial<ResultInit> = {}): ResultInit {
  return {
    isError: false,
    outcome: ExecutionOutcome.COMPLETED,
    content: JSON.stringify([{ type: "text", text }]),
    ...extra,
  } as ResultInit;
}

export class ScriptedHandAgent {
  readonly handAgentId: string;
  journalId: string;
  /** Hands that it has. */
  readonly hands = new Set<string>();
  /** What it has heard of their owners. */
  readonly ownerNumbers = new Map<string, bigint>();
  /** Those of them that have no processes now. */
  readonly parked = new Set<string>();
  /** Hands that were not parked, at most at a time. */
  mostPlaced = 0;
  /** Processes that calls left running, by hand; parking ends them. */
  readonly leftProcesses = new Map<string, { pid: bigint; executionId: string; command: string }[]>();
  readonly journal = new Map<string, JournalEntry>();
  /** How often each execution's effects began; more than once is what X1 forbids. */
  readonly runs = new Map<string, number>();
  /** Everything that the server said, in order. */
  readonly heard: ConnectResponse["kind"][] = [];
  readonly resumeOffsets: number[] = [];
  generation = 0n;
  /** What ended the newest connection. */
  ended: unknown;
  /** While false, no sign of life is sent. */
  beating = true;
  isOnline = false;
  /** While true, calls are not even noted. */
  deaf = false;
  /** What its greetings say of that. */
  superseded = false;
  /** Piece size of output; at most 64 KiB. */
  pieceBytes = 64 * 1024;
  run: NonNullable<ScriptedAgentOptions["run"]>;
  onProvision: ScriptedAgentOptions["onProvision"];
  /** A hand has been parked; the answer waits for it. */
  beforeParkAnswer: (() => Promise<void>) | undefined;
  private readonly options: ScriptedAgentOptions;
  private connection: Connection | undefined;
  private call: BidiCall<typeof ConnectRequestSchema, typeof ConnectResponseSchema> | undefined;
  private loop: Promise<void> = Promise.resolve();
  private readonly streams = new Set<Promise<void>>();
  private beat: NodeJS.Timeout | undefined;

  constructor(options: ScriptedAgentOptions) {
    this.options = options;
    this.handAgentId = options.handAgentId;
    this.journalId = options.journalId ?? "jrnl_1";
    this.run = options.run ?? ((call) => textResult(String(call.input.text ?? "")));
    this.onProvision = options.onProvision;
  }

  /** Resolves once the server has welcomed the agent. */
  async connect(url = this.options.url): Promise<void> {
    this.connection = dial({ url, token: () => this.options.token, proxy: {} });
    const client = this.connection.client(HandAgentService);
    const call = client.connect();
    this.call = call;
    this.ended = undefined;
    const before = this.generation;
    this.loop = this.listen(call);
    await call.send({
      kind: {
        case: "greeting",
        value: {
          protocolVersion: 1,
          build: "scripted",
          installationId: "",
          journalId: this.journalId,
          drivers: [
            {
              name: "process",
              available: true,
              detail: "scripted isolation",
              tools: DEFAULT_TOOLS,
              capabilities: ["park"],
            },
          ],
          labels: {},
          superseded: this.superseded,
          capacityHands: 10,
          hands: [...this.hands].map((handId) => ({
            handId,
            state: this.parked.has(handId) ? HandState.PARKED : HandState.READY,
            driver: "process",
            ownerNumber: this.ownerNumbers.get(handId) ?? 0n,
          })),
          executions: [...this.journal.values()].map(({ key, result, outputBytes }) => ({
            executionKey: key,
            running: result === undefined,
            outputBytes: BigInt(outputBytes),
          })),
          ...this.options.greeting,
        },
      },
    });
    await eventually(() => this.ended !== undefined || this.generation > before);
    if (this.ended !== undefined) throw this.ended;
    for (const entry of this.journal.values()) this.openStream(entry);
  }

  /** The connection breaks, at once and with everything on it. */
  async disconnect(): Promise<void> {
    const { connection } = this;
    this.connection = undefined;
    this.call = undefined;
    connection?.close();
    clearInterval(this.beat);
    await this.loop;
    await Promise.all(this.streams);
  }

  /** Its disk is lost: a new journal, no hands. */
  forgetEverything(journalId: string): void {
    this.journalId = journalId;
    this.journal.clear();
    this.hands.clear();
  }

  say(kind: MessageInitShape<typeof ConnectRequestSchema>["kind"]): void {
    void this.call?.send({ kind } as MessageInitShape<typeof ConnectRequestSchema>).catch(() => {});
  }

  private async listen(
    call: BidiCall<typeof ConnectRequestSchema, typeof ConnectResponseSchema>,
  ): Promise<void> {
    try {
      for await (const { kind } of call.responses) {
        this.heard.push(kind);
        if (kind.case === "welcome") {
          this.generation = kind.value.generation;
          this.isOnline = true;
          const { seconds, nanos } = kind.value.heartbeatEvery!;
          const everyMs = Number(seconds) * 1_000 + nanos / 1e6;
          this.beat = setInterval(() => {
            if (this.beating && this.call === call) this.say({ case: "heartbeat", value: {} });
          }, everyMs);
        } else {
          void this.obey(kind);
        }
      }
      this.ended ??= "ended";
    } catch (error) {
      this.ended = error;
    } finally {
      if (this.call === call || this.call === undefined) {
        this.isOnline = false;
        clearInterval(this.beat);
      }
    }
  }

  private async obey(kind: ConnectResponse["kind"]): Promise<void> {
    switch (kind.case) {
      case "provision": {
        const answer = (await this.onProvision?.(kind.value)) ?? {};
        if ((answer.reason ?? "") === "") {
          this.hands.add(kind.value.handId);
          this.countPlaces();
        }
        return this.say({
          case: "commandResult",
          value: { commandId: kind.value.commandId, reason: "", message: "", ...answer } as never,
        });
      }
      case "release":
        this.hands.delete(kind.value.handId);
        this.parked.delete(kind.value.handId);
        for (const entry of this.journal.values()) {
          if (entry.start?.handId === kind.value.handId) entry.stop.abort("released");
        }
        return this.say({ case: "commandResult", value: { commandId: kind.value.commandId } });
      case "park":
        return this.park(kind.value);
      case "startExecution":
        return this.begin(kind.value);
      case "stopExecution": {
        const entry = this.journal.get(kind.value.executionKey) ?? this.tombstone(kind.value.executionKey);
        entry.stop.abort(kind.value.reason);
        return;
      }
      case "forgetExecutions":
        for (const key of kind.value.executionKeys) this.journal.delete(key);
        return;
    }
  }

  private async park({ commandId, handId }: { commandId: string; handId: string }): Promise<void> {
    const busy = [...this.journal.values()].some(
      ({ start, result }) => start?.handId === handId && result === undefined,
    );
    if (busy) {
      this.say({ case: "commandResult", value: { commandId, reason: "HAND_BUSY", message: "a call runs" } });
      return;
    }
    this.parked.add(handId);
    const left = this.leftProcesses.get(handId) ?? [];
    this.leftProcesses.delete(handId);
    await this.beforeParkAnswer?.();
    const hand = {
      handId,
      state: HandState.PARKED,
      detail: "parked",
      driver: "process",
      leftProcesses: left,
    };
    this.say({ case: "commandResult", value: { commandId, hand } });
  }

  private countPlaces(): void {
    this.mostPlaced = Math.max(this.mostPlaced, this.hands.size - this.parked.size);
  }

  private tombstone(key: string): JournalEntry {
    const entry = newEntry(key, undefined);
    entry.result = textResult("cancelled before it started", {
      isError: true,
      outcome: ExecutionOutcome.CANCELLED,
    });
    this.journal.set(key, entry);
    return entry;
  }

  private begin(start: StartExecution): void {
    if (this.deaf) return;
    const known = this.journal.get(start.executionKey);
    if (known !== undefined) {
      this.openStream(known);
      return;
    }
    const entry = newEntry(start.executionKey, start);
    this.journal.set(start.executionKey, entry);
    this.openStream(entry);
    if (start.inputBytes === 0n) void this.execute(entry, start.input);
  }

  private async execute(entry: JournalEntry, input: string): Promise<void> {
    this.runs.set(entry.key, (this.runs.get(entry.key) ?? 0) + 1);
    const start = entry.start!;
    const resumed = this.parked.delete(start.handId);
    this.countPlaces();
    const result = await this.run({
      resumed,
      key: entry.key,
      name: start.name,
      input: JSON.parse(input) as Record<string, unknown>,
      handId: start.handId,
      ownerNumber: start.ownerNumber,
      timeoutMs: start.timeoutMs,
      signal: entry.stop.signal,
      write: (data) => {
        entry.output = Buffer.concat([entry.output, Buffer.from(data as string)]);
        entry.outputBytes = entry.output.length;
        wake(entry);
      },
    });
    entry.result = { ...result, outputBytes: BigInt(entry.outputBytes) };
    wake(entry);
  }

  private openStream(entry: JournalEntry): void {
    const { connection } = this;
    if (connection === undefined) return;
    const run = this.stream(connection, entry)
      .catch(async () => {
        // As a real agent does: while the connection stands, the stream is opened again.
        await new Promise((resolve) => setTimeout(resolve, 20));
        if (this.connection === connection && this.journal.get(entry.key) === entry) this.openStream(entry);
      })
      .finally(() => this.streams.delete(run));
    this.streams.add(run);
  }

  private async stream(connection: Connection, entry: JournalEntry): Promise<void> {
    const call = connection.client(HandAgentService).streamExecution();
    const responses = call.responses[Symbol.asyncIterator]();
    await call.send({
      kind: { case: "open", value: { executionKey: entry.key, journalId: this.journalId, firstOffset: 0n } },
    });
    const first = await responses.next();
    if (first.done) return;
    const { kind } = first.value;
    if (kind.case === "stored") return void this.journal.delete(entry.key);
    if (kind.case !== "resume") throw new Error(`expected resume, got ${kind.case}`);
    this.resumeOffsets.push(Number(kind.value.offset));
    const reading = this.readStream(entry, responses);
    reading.catch(() => wake(entry));
    const sending = this.sendStream(entry, call, Number(kind.value.offset));
    sending.catch(() => {});
    await Promise.race([sending, reading]);
    await reading;
  }

  private async readStream(
    entry: JournalEntry,
    responses: AsyncIterator<{ kind: { case: string | undefined; value?: unknown } }>,
  ): Promise<void> {
    const input: Uint8Array[] = [];
    let bytes = 0;
    for (;;) {
      const next = await responses.next();
      if (next.done) return;
      const { kind } = next.value;
      if (kind.case === "stored") this.journal.delete(entry.key);
      if (kind.case === "input") {
        input.push(kind.value as Uint8Array);
        bytes += (kind.value as Uint8Array).length;
        if (bytes === Number(entry.start?.inputBytes) && !this.runs.has(entry.key)) {
          void this.execute(entry, Buffer.concat(input).toString());
        }
      }
    }
  }

  private async sendStream(
    entry: JournalEntry,
    call: BidiCall<typeof StreamExecutionRequestSchema, typeof StreamExecutionResponseSchema>,
    from: number,
  ): Promise<void> {
    let sent = from;
    for (;;) {
      while (sent < entry.outputBytes) {
        const data = entry.output.subarray(sent, Math.min(sent + this.pieceBytes, entry.outputBytes));
        await call.send({ kind: { case: "output", value: { offset: BigInt(sent), data } } });
        sent += data.length;
      }
      if (entry.result !== undefined) {
        await call.send({ kind: { case: "result", value: entry.result } as never });
        return;
      }
      await new Promise<void>((resolve) => entry.changed.push(resolve));
    }
  }
}

function newEntry(key: string, start: StartExecution | undefined): JournalEntry {
  return {
    key,
    start,
    stop: new AbortController(),
    output: Buffer.alloc(0),
    outputBytes: 0,
    result: undefined,
    changed: [],
  };
}

function wake(entry: JournalEntry): void {
  const changed = entry.changed;
  entry.changed = [];
  for (const tell of changed) tell();
}
