/**
 * The proxy's connection to the server.
 *
 * P1 There is one at a time; the next is dialled only when the last has ended.
 * P2 A connection that is silent for longer than the server said is ended here, whatever the socket believes. A proxy that was
 *    held up itself reads what came meanwhile before it judges.
 * P3 Delays between attempts grow, and start over only after a connection has stood.
 */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { durationMs } from "@bufbuild/protobuf/wkt";
import { Backoff } from "../kit/backoff.ts";
import { type Clock, within } from "../kit/clock.ts";
import type { Connection } from "../kit/dial/dial.ts";
import { messageOf, TendonError } from "../kit/errors.ts";
import type { Service } from "../kit/lifecycle.ts";
import type { Logger } from "../kit/log.ts";
import { SilenceWatch } from "../kit/silence.ts";
import { HeartbeatSchema } from "../proto/gen/tendon/v1/harness_service_pb.js";
import {
  type AskTunnel,
  ProxyAnswerSchema,
  ProxyHelloSchema,
  ProxyService,
  type ProxyServiceConnectResponse,
  type ProxyWelcome,
} from "../proto/gen/tendon/v1/proxy_service_pb.js";
import type { Answer, CredentialAsks } from "./credentials/asks.ts";
import type { Connects } from "./credentials/connect/connects.ts";
import type { Webhooks } from "./webhooks/webhooks.ts";

const BACKOFF = { firstMs: 100, maxMs: 10_000, resetAfterMs: 30_000 };
/** How long the server may take to say welcome. */
const WELCOME_TIMEOUT_MS = 10_000;
/** For the server to read what was answered before a stop. */
const LEAVE_WITHIN_MS = 1_000;
/** For a server that leaves the numbers out. */
const DEFAULT_BEAT_MS = 5_000;
const DEFAULT_TIMEOUT_MS = 15_000;

export interface ServerLinkDeps {
  readonly connection: Connection;
  readonly hello: MessageInitShape<typeof ProxyHelloSchema>;
  readonly asks: Pick<CredentialAsks, "reseal" | "validate" | "authorities">;
  readonly connects: Pick<Connects, "start" | "finish">;
  readonly webhooks: Pick<Webhooks, "deliver" | "checkUrl">;
  /** Comes with every connection, and again when what it says has changed. */
  readonly onWelcome: (welcome: ProxyWelcome) => void;
  /** A sandbox wants a connection; without it none is taken. */
  readonly onTunnel?: (ask: AskTunnel) => Answer;
  /** The session ended: what is open for it is closed. */
  readonly onForgetSession: (sessionId: string) => void;
  readonly clock: Clock;
  readonly log: Logger;
}

export class ServerLink implements Service {
  readonly name = "server link";
  connected = false;
  private readonly deps: ServerLinkDeps;
  private readonly stopping = new AbortController();
  private loop: Promise<void> | undefined;
  private leaving = false;
  private endSending = () => {};

  constructor(deps: ServerLinkDeps) {
    this.deps = deps;
  }

  /** Resolves at once: the server may come later. */
  async start(): Promise<void> {
    this.loop ??= this.run();
  }

  /** What was answered is heard: the server ends the call once it has read all of it. */
  async stop(): Promise<void> {
    this.leaving = true;
    this.endSending();
    const over = this.connected ? (this.loop ?? Promise.resolve()) : Promise.resolve();
    await within(this.deps.clock, LEAVE_WITHIN_MS, over, () => new Error("late")).catch(() => {});
    this.stopping.abort(new TendonError("CANCELLED", "the proxy stops"));
    await this.loop;
  }

  private async run(): Promise<void> {
    const { clock, log } = this.deps;
    const backoff = new Backoff(clock, BACKOFF);
    while (!this.stopping.signal.aborted && !this.leaving) {
      try {
        await this.attempt(backoff);
        log.info("the server ended the connection");
      } catch (error) {
        if (!this.stopping.signal.aborted)
          log.warn({ error: messageOf(error) }, "no connection to the server");
      }
      this.connected = false;
      if (this.leaving) return;
      await clock.sleep(backoff.nextDelayMs(), this.stopping.signal).catch(() => {});
    }
  }

  private async attempt(backoff: Backoff): Promise<void> {
    const { clock, connection, hello, log, onWelcome } = this.deps;
    const ended = new AbortController();
    const signal = AbortSignal.any([ended.signal, this.stopping.signal]);
    const call = connection.client(ProxyService).connect({ signal });
    this.endSending = () => call.end();
    const give = (message: string) => ended.abort(new TendonError("UNAVAILABLE", message));
    let lastHeardMs = clock.monotonicMs();
    let stopBeating = clock.after(WELCOME_TIMEOUT_MS, () => give("the server did not say welcome in time"));
    let received = 0n;
    let sent = 0n;
    const beat = (silence: SilenceWatch) => {
      if (silence.isOver(clock.monotonicMs() - lastHeardMs))
        return give("nothing was heard from the server for too long");
      sent += 1n;
      const heartbeat = create(HeartbeatSchema, { sequence: sent, receivedSequence: received });
      call.send({ kind: { case: "heartbeat", value: heartbeat } }).catch(() => {});
    };
    try {
      await call.send({ kind: { case: "hello", value: create(ProxyHelloSchema, hello) } });
      for await (const message of call.responses) {
        lastHeardMs = clock.monotonicMs();
        if (message.kind.case === "heartbeat") received = message.kind.value.sequence;
        else if (message.kind.case === "draining") return;
        else if (message.kind.case === "welcome") {
          const welcome = message.kind.value;
          stopBeating();
          const everyMs = welcome.heartbeatEvery ? durationMs(welcome.heartbeatEvery) : DEFAULT_BEAT_MS;
          const { heartbeatTimeout } = welcome;
          const silence = new SilenceWatch(
            heartbeatTimeout ? durationMs(heartbeatTimeout) : DEFAULT_TIMEOUT_MS,
          );
          stopBeating = clock.every(everyMs, () => beat(silence));
          backoff.connected();
          this.connected = true;
          log.info({ replicaId: welcome.replicaId }, "connected to the server");
          onWelcome(welcome);
        } else {
          const send = (value: MessageInitShape<typeof ProxyAnswerSchema>) =>
            void call
              .send({ kind: { case: "answer", value: create(ProxyAnswerSchema, value) } })
              .catch(() => {});
          this.answer(message, send);
        }
      }
    } finally {
      stopBeating();
      this.endSending = () => {};
      call.cancel();
    }
  }

  /** One at a time would let a slow destination hold up all that the server asks. */
  private answer(
    { kind }: ProxyServiceConnectResponse,
    send: (answer: MessageInitShape<typeof ProxyAnswerSchema>) => void,
  ): void {
    const { asks, connects, webhooks, onForgetSession, onTunnel = () => NO_TUNNELS, log } = this.deps;
    const answered = (askId: string, answer: Promise<Answer>) =>
      void answer.then(
        (value) => send({ ...value, askId }),
        (error: unknown) => log.error({ error: messageOf(error) }, "a question was not answered"),
      );
    if (kind.case === "validate") answered(kind.value.askId, asks.validate(kind.value));
    else if (kind.case === "reseal") answered(kind.value.askId, asks.reseal(kind.value));
    else if (kind.case === "authorities") answered(kind.value.askId, asks.authorities(kind.value));
    else if (kind.case === "startConnect") answered(kind.value.askId, connects.start(kind.value));
    else if (kind.case === "finishConnect") answered(kind.value.askId, connects.finish(kind.value));
    else if (kind.case === "deliverWebhook") answered(kind.value.askId, webhooks.deliver(kind.value));
    else if (kind.case === "checkWebhookUrl")
      send({ ...webhooks.checkUrl(kind.value), askId: kind.value.askId });
    else if (kind.case === "forgetSession") onForgetSession(kind.value.sessionId);
    else if (kind.case === "tunnel") send({ ...onTunnel(kind.value), askId: kind.value.tunnelId });
  }
}

/** What this build cannot do is answered, so that nobody waits for it. */
const NO_TUNNELS: Answer = { reason: "NOT_CONFIGURED", message: "this proxy carries no tunnels" };
