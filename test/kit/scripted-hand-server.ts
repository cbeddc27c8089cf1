/**
 * The far side of a hand agent's wire: a real port that speaks the contract, does what a test says and remembers what
 * it was told. It stores results and asks for output from where it is, as a server does.
 */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { systemClock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import { type Listener, listen } from "../../kit/listen/listen.ts";
import type { TlsFiles } from "../../kit/listen/tls-files.ts";
import { createLogger } from "../../kit/log.ts";
import { Outbox } from "../../kit/outbox.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import { createGrpcServer, mountGrpc } from "../../kit/rpc/mount-grpc.ts";
import { bindService, type ServiceImplementation } from "../../kit/rpc/service.ts";
import { validationInterceptor } from "../../kit/rpc/validation.ts";
import { keyId, type PublicKeyJwk } from "../../kit/sign/key-file.ts";
import { verifyToken } from "../../kit/sign/token.ts";
import {
  type CommandResult,
  type ConnectRequest,
  type ConnectResponse,
  ConnectResponseSchema,
  type HandAgentGreeting,
  HandAgentService,
  type HandReport,
  ProvisionCommandSchema,
  type StreamExecutionResponse,
  StreamExecutionResponseSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "./eventually.ts";

type Say = MessageInitShape<typeof ConnectResponseSchema>["kind"];

/** One connection of an agent. */
export class ScriptedConnection {
  readonly greeting: HandAgentGreeting;
  readonly peer: string;
  readonly heard: ConnectRequest["kind"][] = [];
  isOpen = true;
  private readonly outbox: Outbox<ConnectResponse>;

  constructor(greeting: HandAgentGreeting, peer: string, outbox: Outbox<ConnectResponse>) {
    this.greeting = greeting;
    this.peer = peer;
    this.outbox = outbox;
  }

  say(kind: Say): void {
    this.outbox.push(create(ConnectResponseSchema, { kind } as never));
  }

  /** Ends the stream, with an error when one is given. */
  end(error?: TendonError): void {
    this.outbox.end(error);
  }

  get heartbeats(): number {
    return this.heard.filter(({ case: name }) => name === "heartbeat").length;
  }

  commandResult(commandId: string): Promise<CommandResult> {
    return eventually(() => {
      for (const kind of this.heard) {
        if (kind.case === "commandResult" && kind.value.commandId === commandId) return kind.value;
      }
      return undefined;
    });
  }

  handReports(): HandReport[] {
    return this.heard.flatMap((kind) => (kind.case === "handReport" ? [kind.value] : []));
  }
}

/** What the server has of one execution. */
export interface ScriptedExecution {
  /** Output received so far, without gaps. */
  output: Buffer[];
  outputBytes: number;
  /** `first_offset` of every stream that was opened. */
  opens: number[];
  result: ExecutionResult | undefined;
  resultsReceived: number;
}

export interface ScriptedOptions {
  heartbeatEveryMs?: number;
  heartbeatTimeoutMs?: number;
  installationId?: string;
  port?: number;
  /** That its welcome names; default 1. */
  protocolVersion?: number;
  tls?: TlsFiles;
}

export class ScriptedHandServer {
  readonly joinToken = "jt_scripted";
  readonly connections: ScriptedConnection[] = [];
  readonly executions = new Map<string, ScriptedExecution>();
  /** How often Connect was called, also when it was refused. */
  attempts = 0;
  /** Refuses every Connect with this. */
  refuseConnect: TendonError | undefined;
  /** Refuses every Enroll with this. */
  refuseEnroll: TendonError | undefined;
  /** Results that are received but not stored while this holds their key. */
  readonly notStoring = new Set<string>();
  /** Executions that the server denies knowing. */
  readonly unknown = new Set<string>();
  /** Output that is read no further than this, by key. */
  readonly readAtMost = new Map<string, number>();
  /** Inputs that come on the stream, by key. */
  readonly lateInputs = new Map<string, Buffer>();
  readonly agents = new Map<string, { id: string; publicKey: PublicKeyJwk }>();
  /** Stored files that hands may be given, by digest. */
  readonly storedFiles = new Map<string, Buffer>();
  /** Transfers: what was asked and what came. */
  readonly transfers = new Map<
    string,
    { send: Buffer[]; received: Buffer[]; end: { reason: string; sha256: string } | undefined }
  >();
  installationId: string;
  private listener!: Listener;
  private readonly options: ScriptedOptions;
  private commands = 0;

  constructor(options: ScriptedOptions) {
    this.options = options;
    this.installationId = options.installationId ?? "inst_scripted";
  }

  get url(): string {
    return `http://127.0.0.1:${this.listener.port}`;
  }

  get port(): number {
    return this.listener.port;
  }

  async open(): Promise<void> {
    const log = createLogger("scripted-server", "silent");
    const grpcServer = createGrpcServer();
    const services = [bindService(HandAgentService, this.implementation())];
    mountGrpc(grpcServer, services, { interceptors: [validationInterceptor()], log });
    this.listener = await listen({
      host: "127.0.0.1",
      port: this.options.port ?? 0,
      h2c: "auto",
      tls: this.options.tls,
      grpcServer,
      httpHandler: (_request, response) => void response.end(),
      log,
    });
  }

  async close(): Promise<void> {
    await this.listener.close({ graceMs: 0 });
  }

  /** The connection with this index, once it stands. */
  connection(index: number, withinMs = 60_000): Promise<ScriptedConnection> {
    return eventually(() => this.connections[index], { withinMs });
  }

  /** The newest connection. */
  get current(): ScriptedConnection {
    return this.connections.at(-1)!;
  }

  /** Cuts every connection without a word. */
  cut(): void {
    for (const { peer } of this.connections) this.listener.destroyPeer(peer);
  }

  async provision(
    handId: string,
    extra: Partial<MessageInitShape<typeof ProvisionCommandSchema>> = {},
  ): Promise<CommandResult> {
    const commandId = `cmd_${++this.commands}`;
    const value = create(ProvisionCommandSchema, {
      commandId,
      handId,
      driver: "process",
      ownerNumber: 1n,
      ...extra,
    } as never);
    this.current.say({ case: "provision", value });
    return this.current.commandResult(commandId);
  }

  async command(name: "release" | "park", handId: string): Promise<CommandResult> {
    const commandId = `cmd_${++this.commands}`;
    this.current.say({ case: name, value: { commandId, handId } } as Say);
    return this.current.commandResult(commandId);
  }

  start(
    key: string,
    handId: string,
    name: string,
    input: unknown,
    extra: { timeoutMs?: number; ownerNumber?: number; late?: boolean } = {},
  ): void {
    const text = Buffer.from(JSON.stringify(input));
    if (extra.late) this.lateInputs.set(key, text);
    this.current.say({
      case: "startExecution",
      value: {
        executionKey: key,
        handId,
        ownerNumber: BigInt(extra.ownerNumber ?? 1),
        name,
        input: extra.late ? "" : text.toString(),
        inputBytes: BigInt(extra.late ? text.length : 0),
        timeoutMs: BigInt(extra.timeoutMs ?? 0),
      },
    } as Say);
  }

  bash(key: string, handId: string, command: string, extra: { timeoutMs?: number } = {}): void {
    this.start(key, handId, "bash", { command }, extra);
  }

  result(key: string, withinMs = 60_000): Promise<ExecutionResult> {
    return eventually(() => this.executions.get(key)?.result, { withinMs });
  }

  outputOf(key: string): Buffer {
    return Buffer.concat(this.executions.get(key)?.output ?? []);
  }

  private implementation(): ServiceImplementation<typeof HandAgentService> {
    const server = this;
    return {
      enroll: (request) => server.enroll(request),
      async *connect(requests, context) {
        yield* server.connect(requests, context);
      },
      async *streamExecution(requests, context) {
        await server.authenticate(context);
        yield* server.receive(requests);
      },
      async *streamTransfer(requests, context) {
        await server.authenticate(context);
        let transfer:
          | { send: Buffer[]; received: Buffer[]; end: { reason: string; sha256: string } | undefined }
          | undefined;
        for await (const { kind } of requests) {
          if (kind.case === "transferId") {
            transfer = server.transfers.get(kind.value);
            for (const chunk of transfer?.send ?? []) yield { kind: { case: "chunk", value: chunk } };
            if (transfer !== undefined) yield { kind: { case: "end", value: {} } };
          } else if (kind.case === "chunk") transfer?.received.push(Buffer.from(kind.value));
          else if (kind.case === "end" && transfer) transfer.end = kind.value;
        }
      },
      async syncMemory() {
        throw new TendonError("NOT_FOUND", "this server has no memory stores");
      },
      async listHandFiles() {
        return { files: [] };
      },
      // biome-ignore lint/correctness/useYield: refuses at once
      async *readHandFile() {
        throw new TendonError("NOT_FOUND", "this server has no files of sessions");
      },
      async offerOutputs() {
        return { verdicts: [] };
      },
      async storeOutput() {
        throw new TendonError("NOT_FOUND", "this server takes no outputs");
      },
      // biome-ignore lint/correctness/useYield: refuses before the first line
      async *readSessionLog() {
        throw new TendonError("NOT_FOUND", "this server has no session logs");
      },
      async *readResource({ sha256 }, context) {
        await server.authenticate(context);
        const bytes = server.storedFiles.get(sha256);
        if (bytes === undefined) throw new TendonError("NOT_FOUND", "no such file");
        yield { chunk: bytes };
      },
      // biome-ignore lint/correctness/useYield: refuses at once
      async *streamTunnel() {
        throw new TendonError("NOT_IMPLEMENTED", "no tunnels here");
      },
    };
  }

  private async enroll({ joinToken, publicKey }: { joinToken: string; publicKey: Uint8Array }) {
    if (this.refuseEnroll) throw this.refuseEnroll;
    const jwk: PublicKeyJwk = { kty: "OKP", crv: "Ed25519", x: Buffer.from(publicKey).toString("base64url") };
    const kid = await keyId(jwk);
    if (joinToken !== this.joinToken) throw new TendonError("JOIN_TOKEN_INVALID", "no such join token");
    const known = this.agents.get(kid);
    const id = known?.id ?? `hagt_${this.agents.size + 1}`;
    this.agents.set(kid, { id, publicKey: jwk });
    return { handAgentId: id, workspaceId: "wrkspc_1", pool: "", installationId: this.installationId };
  }

  private async authenticate(context: RpcContext): Promise<void> {
    const token = context.requestHeaders.get("authorization")?.replace(/^Bearer /, "") ?? "";
    const options = { audience: "tendon", clock: systemClock, maxTtlMs: 300_000 };
    const { subject, kid } = await verifyToken((id) => this.agents.get(id)?.publicKey, token, options);
    if (this.agents.get(kid)?.id !== subject) throw new TendonError("UNAUTHENTICATED", "not that agent");
  }

  private async *connect(
    requests: AsyncIterable<ConnectRequest>,
    context: RpcContext,
  ): AsyncGenerator<ConnectResponse> {
    this.attempts += 1;
    if (this.refuseConnect) throw this.refuseConnect;
    await this.authenticate(context);
    const outbox = new Outbox<ConnectResponse>(10_000);
    const say = (kind: Say) => outbox.push(create(ConnectResponseSchema, { kind } as never));
    let connection: ScriptedConnection | undefined;
    const reading = (async () => {
      for await (const { kind } of requests) {
        connection?.heard.push(kind);
        if (kind.case !== "greeting") continue;
        say({ case: "welcome", value: this.welcome() });
        connection = new ScriptedConnection(kind.value, context.peer, outbox);
        this.connections.push(connection);
      }
    })().then(
      () => outbox.end(),
      (error) => outbox.end(error),
    );
    let sequence = 0n;
    const everyMs = this.options.heartbeatEveryMs ?? 1_000;
    const stopBeating = systemClock.every(everyMs, () =>
      say({ case: "heartbeat", value: { sequence: ++sequence } } as Say),
    );
    try {
      yield* outbox;
    } finally {
      stopBeating();
      if (connection) connection.isOpen = false;
      void reading;
    }
  }

  private welcome() {
    return {
      generation: BigInt(this.connections.length + 1),
      replicaId: "rplc_scripted",
      installationId: this.installationId,
      heartbeatEvery: durationFromMs(this.options.heartbeatEveryMs ?? 1_000),
      heartbeatTimeout: durationFromMs(this.options.heartbeatTimeoutMs ?? 10_000),
      protocolVersion: this.options.protocolVersion ?? 1,
    };
  }

  private async *receive(
    requests: Parameters<ServiceImplementation<typeof HandAgentService>["streamExecution"]>[0],
  ): AsyncGenerator<StreamExecutionResponse> {
    const say = (kind: unknown) => create(StreamExecutionResponseSchema, { kind } as never);
    let execution: ScriptedExecution | undefined;
    let key = "";
    for await (const { kind } of requests) {
      if (kind.case === "open") {
        key = kind.value.executionKey;
        if (this.unknown.has(key)) throw new TendonError("NOT_FOUND", `no execution ${key}`);
        execution = this.executions.get(key) ?? {
          output: [],
          outputBytes: 0,
          opens: [],
          result: undefined,
          resultsReceived: 0,
        };
        this.executions.set(key, execution);
        execution.opens.push(Number(kind.value.firstOffset));
        yield say({ case: "resume", value: { offset: BigInt(execution.outputBytes) } });
        const input = this.lateInputs.get(key);
        for (let at = 0; input && at < input.length; at += 65_536)
          yield say({ case: "input", value: input.subarray(at, at + 65_536) });
      } else if (kind.case === "output" && execution) {
        const offset = Number(kind.value.offset);
        // A gap is only right where the agent has said that it dropped bytes.
        if (offset !== execution.outputBytes && execution.opens.at(-1) !== offset)
          throw new Error(`a gap: ${execution.outputBytes} to ${offset}`);
        execution.output.push(Buffer.from(kind.value.data));
        execution.outputBytes = offset + kind.value.data.byteLength;
        const most = this.readAtMost.get(key);
        if (most !== undefined && execution.outputBytes >= most)
          await eventually(() => !this.readAtMost.has(key), { withinMs: 60_000 });
      } else if (kind.case === "result" && execution) {
        execution.resultsReceived += 1;
        if (this.notStoring.has(key)) continue;
        execution.result ??= kind.value;
        yield say({ case: "stored", value: {} });
        return;
      }
    }
  }
}

export async function startScriptedHandServer(options: ScriptedOptions = {}): Promise<ScriptedHandServer> {
  const server = new ScriptedHandServer(options);
  await server.open();
  return server;
}
