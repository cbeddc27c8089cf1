/** One proxy's connection: what is to be sent to it, and when it was last heard. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { type Clock, within } from "../../kit/clock.ts";
import { REASONS, type Reason, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { Outbox } from "../../kit/outbox.ts";
import type { SilenceWatch } from "../../kit/silence.ts";
import type {
  ProxyAnswer,
  ProxyHello,
  ProxyServiceConnectResponseSchema,
  ProxyWelcomeSchema,
  SealingKey,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { type AskOptions, askWithId, type ProxyAsk } from "../ports/proxy-directory.ts";
import type { AskedProxy, TunnelAsk } from "../ports/tunnels.ts";
import type { WebAbilities } from "../store/replicas.ts";

type Outgoing = MessageInitShape<typeof ProxyServiceConnectResponseSchema>;
export type ProxyWelcomeInit = Exclude<MessageInitShape<typeof ProxyWelcomeSchema>, { $typeName: string }>;

interface Waiting {
  resolve(answer: ProxyAnswer): void;
  reject(error: Error): void;
}

/** Questions that one proxy has not answered yet. */
const MAX_ASKED = 500;

/** For a proxy to say whether it takes a tunnel. */
const TUNNEL_ANSWER_MS = 10_000;
const PROXY = { part: "proxy" };

/** A proxy that is further behind is cut off and starts anew. */
const MAX_QUEUED = 1_000;

export class ProxyConnection {
  readonly instanceId: string;
  readonly url: string;
  readonly sealingKeys: readonly SealingKey[];
  readonly web: WebAbilities;
  /** The session-token keys that the proxy was told last. */
  sessionTokenKeys = "";
  /** The installation's own URLs, as it was told them last. */
  ownUrls = "";
  /** The key to seal to that it was told last. */
  sealingKeyId = "";
  private readonly asked = new Map<string, Waiting>();
  readonly outbox = new Outbox<Outgoing>(MAX_QUEUED);
  private lastHeardMs: number;
  private received = 0n;
  private sent = 0n;

  /** The workspace that its key is for; undefined: all of the installation. */
  readonly serves: string | undefined;

  constructor({ instanceId, url, sealingKeys, webTools }: ProxyHello, nowMs: number, serves?: string) {
    this.serves = serves;
    this.instanceId = instanceId;
    this.url = url;
    this.sealingKeys = sealingKeys;
    this.web = { fetch: webTools?.fetch ?? false, search: webTools?.search ?? false };
    this.lastHeardMs = nowMs;
  }

  /** Comes first, and again whenever the keys have changed. */
  welcome(
    welcome: ProxyWelcomeInit & { sessionTokenKeys: string; ownUrls: string[]; sealingKeyId: string },
  ): void {
    this.sessionTokenKeys = welcome.sessionTokenKeys;
    this.ownUrls = welcome.ownUrls.join(" ");
    this.sealingKeyId = welcome.sealingKeyId;
    this.outbox.push({ kind: { case: "welcome", value: welcome } });
  }

  heard(nowMs: number, sequence?: bigint): void {
    this.lastHeardMs = nowMs;
    if (sequence !== undefined) this.received = sequence;
  }

  /** Sends a heartbeat, or ends the connection when the proxy was silent for too long (H3). */
  beat(nowMs: number, silence: SilenceWatch): void {
    if (silence.isOver(nowMs - this.lastHeardMs)) {
      this.end(new TendonError("UNAVAILABLE", "nothing was heard from the proxy for too long"));
      return;
    }
    this.sent += 1n;
    const value = { sequence: this.sent, receivedSequence: this.received };
    this.outbox.push({ kind: { case: "heartbeat", value } });
  }

  forgetSession(sessionId: string): void {
    this.outbox.push({ kind: { case: "forgetSession", value: { sessionId } } });
  }

  /** Resolves with what the proxy says, also when that is a refusal. */
  async ask(ask: ProxyAsk, clock: Clock, { timeoutMs, signal }: AskOptions): Promise<ProxyAnswer> {
    if (this.asked.size >= MAX_ASKED) throw new TendonError("LIMIT_EXCEEDED", "the proxy has too much to do");
    const askId = newId("request");
    const answer = this.answerTo(askId);
    const giveUp = () =>
      this.settle(askId)?.reject(new TendonError("CANCELLED", "nobody waits for the answer any more"));
    signal?.addEventListener("abort", giveUp, { once: true });
    try {
      if (!this.outbox.push({ kind: askWithId(ask, askId) })) throw gone();
      const late = () =>
        new TendonError("DEADLINE_EXCEEDED", "the proxy did not answer in time", { part: "proxy" });
      return await within(clock, timeoutMs, answer, late);
    } finally {
      signal?.removeEventListener("abort", giveUp);
      this.settle(askId);
    }
  }

  /** Asks for the proxy's end of a tunnel; its answer has the tunnel's id. */
  askTunnel(ask: TunnelAsk, clock: Clock): AskedProxy {
    return { instanceId: this.instanceId, accepted: this.whenAccepted(ask, clock) };
  }

  private async whenAccepted(ask: TunnelAsk, clock: Clock): Promise<void> {
    if (this.asked.size >= MAX_ASKED) throw new TendonError("LIMIT_EXCEEDED", "the proxy has too much to do");
    const { tunnelId } = ask;
    const answer = this.answerTo(tunnelId);
    try {
      if (!this.outbox.push({ kind: { case: "tunnel", value: ask } })) throw gone();
      const late = () => new TendonError("DEADLINE_EXCEEDED", "the proxy did not answer in time", PROXY);
      const { reason, message } = await within(clock, TUNNEL_ANSWER_MS, answer, late);
      if (reason === "") return;
      throw new TendonError(isReason(reason) ? reason : "UNAVAILABLE", message, PROXY);
    } finally {
      this.settle(tunnelId);
    }
  }

  private answerTo(askId: string): Promise<ProxyAnswer> {
    const answer = new Promise<ProxyAnswer>((resolve, reject) => this.asked.set(askId, { resolve, reject }));
    answer.catch(() => {});
    return answer;
  }

  /** Answers that nobody waits for any more are dropped. */
  answered(answer: ProxyAnswer): void {
    this.settle(answer.askId)?.resolve(answer);
  }

  private settle(askId: string): Waiting | undefined {
    const waiting = this.asked.get(askId);
    this.asked.delete(askId);
    return waiting;
  }

  /** The proxy is told to connect elsewhere; the stream ends once it has been. */
  drain(graceMs: number): void {
    this.outbox.push({ kind: { case: "draining", value: { grace: durationFromMs(graceMs) } } });
    this.end();
  }

  /** What is queued still goes out. */
  end(error?: TendonError): void {
    this.outbox.end(error);
  }

  /** Nothing comes from it any more. */
  closed(): void {
    for (const askId of [...this.asked.keys()]) this.settle(askId)?.reject(gone());
  }
}

function isReason(text: string): text is Reason {
  return Object.hasOwn(REASONS, text);
}

function gone(): TendonError {
  return new TendonError("UNAVAILABLE", "the proxy went away before it answered; try again", {
    part: "proxy",
  });
}
