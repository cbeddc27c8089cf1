/**
 * One connection to the server, from the greeting to its end.
 *
 *   greeting   the stream is open, the greeting is sent, nothing was heard
 *   standing   the server took the agent in: heartbeats go both ways, commands are carried out
 *   over       one outcome; nothing of the connection is left
 *
 * C1 It is over at the latest when nothing was heard for `heartbeat_timeout` (H3); transport keepalive is not relied on.
 *    An agent that was held up itself reads what came meanwhile before it judges.
 * C2 Its end aborts its signal first: no stream or answer of this connection reaches a later one.
 * C3 It has one outcome, the first one.
 * C4 A server that says it is about to stop is left at a random moment of its grace, so that not all agents move at once.
 */
import { setMaxListeners } from "node:events";
import type { Clock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import type { BidiCall, Client } from "../../kit/rpc/client.ts";
import { SilenceWatch } from "../../kit/silence.ts";
import type {
  ConnectRequest,
  ConnectRequestSchema,
  ConnectResponse,
  ConnectResponseSchema,
  HandAgentGreeting,
  HandAgentService,
  HandAgentWelcome,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { PROTOCOL_VERSIONS } from "./greeting.ts";
import { type ConnectionOutcome, outcomeOfError } from "./outcome.ts";

export type AgentClient = Client<typeof HandAgentService>;
type ConnectCall = BidiCall<typeof ConnectRequestSchema, typeof ConnectResponseSchema>;

/** A connection that stands, for those who use it. */
export interface Tunnel {
  readonly welcome: HandAgentWelcome;
  readonly client: AgentClient;
  /** Aborts when the connection is over. */
  readonly signal: AbortSignal;
  /** Says something to the server; dropped when the connection is over. */
  send(kind: ConnectRequest["kind"]): void;
}

export interface ConnectionDeps {
  client: AgentClient;
  greeting(): HandAgentGreeting;
  /** The connection stands. */
  onStanding(tunnel: Tunnel): void;
  /** In order; must not block. */
  onCommand(tunnel: Tunnel, command: ConnectResponse["kind"]): void;
  clock: Clock;
  random?: () => number;
  /** For the server to take the agent in, the dialling included. */
  welcomeWithinMs?: number;
}

/** A server that has just started takes its agents in one after the other: who leaves early only waits longer. */
const DEFAULT_WELCOME_WITHIN_MS = 25_000;
/** The window in which agents leave a server that is about to stop. */
const MAX_LEAVE_MS = 2_000;
/** Bounds of what a server may ask for. */
const HEARTBEAT_EVERY_MS = { min: 50, max: 60_000 };
const HEARTBEAT_TIMEOUT_MS = { min: 200, max: 120_000 };

type State =
  | { phase: "greeting"; cancelDeadline: () => void }
  | { phase: "standing"; tunnel: Tunnel; lastHeardMs: number; stopHeartbeats: () => void }
  | { phase: "over" };

export class Connection {
  private readonly deps: ConnectionDeps;
  private readonly aborter = new AbortController();
  private state: State;
  private outcome: ConnectionOutcome | undefined;
  private call: ConnectCall | undefined;
  private sent = 0n;
  private received = 0n;

  constructor(deps: ConnectionDeps) {
    this.deps = deps;
    // Every stream of the connection listens; their number is bounded where they are made.
    setMaxListeners(0, this.aborter.signal);
    const withinMs = deps.welcomeWithinMs ?? DEFAULT_WELCOME_WITHIN_MS;
    const cancelDeadline = deps.clock.after(withinMs, () =>
      this.end({ kind: "broken", detail: `the server did not answer within ${withinMs} ms` }),
    );
    this.state = { phase: "greeting", cancelDeadline };
  }

  /** Runs the connection to its end. Never rejects. */
  async run(): Promise<ConnectionOutcome> {
    try {
      this.call = this.deps.client.connect({ signal: this.aborter.signal });
      this.send({ case: "greeting", value: this.deps.greeting() });
      for await (const { kind } of this.call.responses) {
        if (this.state.phase === "over") break;
        this.heard(kind);
      }
      this.end({ kind: "broken", detail: "the server ended the connection" });
    } catch (error) {
      this.end(outcomeOfError(error));
    }
    return this.outcome!;
  }

  /** Ends it from this side. */
  stop(): void {
    this.end({ kind: "stopped" });
  }

  /** Whether the server took the agent in. */
  get isStanding(): boolean {
    return this.state.phase === "standing";
  }

  private heard(kind: ConnectResponse["kind"]): void {
    const { state } = this;
    if (state.phase === "greeting") {
      if (kind.case === "welcome") this.stand(kind.value, state.cancelDeadline);
      else this.end({ kind: "broken", detail: "the server's first message was not a welcome" });
    }
    if (state.phase !== "standing") return;
    state.lastHeardMs = this.deps.clock.monotonicMs();
    if (kind.case === "heartbeat") this.received = kind.value.sequence;
    else if (kind.case === "draining") this.leaveSoon(state, millis(kind.value.grace, MAX_LEAVE_MS));
    else this.deps.onCommand(state.tunnel, kind);
  }

  private stand(welcome: HandAgentWelcome, cancelDeadline: () => void): void {
    cancelDeadline();
    const version = welcome.protocolVersion;
    const { oldest, newest } = PROTOCOL_VERSIONS;
    if (version < oldest || version > newest) {
      const spoken = oldest === newest ? `${newest}` : `${oldest} to ${newest}`;
      const detail = `the server chose version ${version}, this build speaks ${spoken}`;
      this.end({ kind: "version_unsupported", detail });
      return;
    }
    const { clock, client } = this.deps;
    const everyMs = bounded(millis(welcome.heartbeatEvery, 5_000), HEARTBEAT_EVERY_MS);
    const timeoutMs = bounded(millis(welcome.heartbeatTimeout, 20_000), HEARTBEAT_TIMEOUT_MS);
    const tunnel: Tunnel = { welcome, client, signal: this.aborter.signal, send: (kind) => this.send(kind) };
    const stopSending = clock.every(everyMs, () => this.beat());
    // Two of four looks in the bound have to find it silent: between three quarters and all of it.
    const silence = new SilenceWatch(timeoutMs / 2);
    const stopWatching = clock.every(timeoutMs / 4, () => this.watch(silence));
    const stopHeartbeats = () => {
      stopSending();
      stopWatching();
    };
    this.state = { phase: "standing", tunnel, lastHeardMs: clock.monotonicMs(), stopHeartbeats };
    this.deps.onStanding(tunnel);
  }

  /** C4. Until then everything goes on. */
  private leaveSoon(state: State & { phase: "standing" }, graceMs: number): void {
    const inMs = (this.deps.random ?? Math.random)() * Math.min(MAX_LEAVE_MS, graceMs / 2);
    const { stopHeartbeats } = state;
    const cancel = this.deps.clock.after(inMs, () =>
      this.end({ kind: "draining", detail: "the server is about to stop" }),
    );
    state.stopHeartbeats = () => {
      stopHeartbeats();
      cancel();
    };
  }

  private beat(): void {
    this.sent += 1n;
    this.send({
      case: "heartbeat",
      value: { $typeName: "tendon.v1.Heartbeat", sequence: this.sent, receivedSequence: this.received },
    });
  }

  private watch(silence: SilenceWatch): void {
    if (this.state.phase !== "standing") return;
    const silentMs = this.deps.clock.monotonicMs() - this.state.lastHeardMs;
    if (!silence.isOver(silentMs)) return;
    this.end({ kind: "broken", detail: `nothing was heard from the server for ${Math.round(silentMs)} ms` });
  }

  /** Never waits: what this carries is small, and a full stream shows as silence. */
  private send(kind: ConnectRequest["kind"]): void {
    if (this.state.phase === "over") return;
    this.call?.send({ kind }).catch(() => {}); // the end of the call is seen where it is read
  }

  private end(outcome: ConnectionOutcome): void {
    if (this.outcome !== undefined) return;
    this.outcome = outcome;
    if (this.state.phase === "greeting") this.state.cancelDeadline();
    if (this.state.phase === "standing") this.state.stopHeartbeats();
    this.state = { phase: "over" };
    this.aborter.abort(new TendonError("UNAVAILABLE", "the connection to the server is over"));
  }
}

function millis(duration: { seconds: bigint; nanos: number } | undefined, otherwise: number): number {
  if (duration === undefined) return otherwise;
  return Number(duration.seconds) * 1_000 + duration.nanos / 1e6;
}

function bounded(value: number, { min, max }: { min: number; max: number }): number {
  return Math.min(max, Math.max(min, value));
}
