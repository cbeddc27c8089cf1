/** One proxy's connection: what is to be sent to it, and when it was last heard. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { TendonError } from "../../kit/errors.ts";
import { Outbox } from "../../kit/outbox.ts";
import type {
  ProxyHello,
  ProxyServiceConnectResponseSchema,
  ProxyWelcomeSchema,
} from "../../proto/gen/tendon/v1/proxy_service_pb.js";

type Outgoing = MessageInitShape<typeof ProxyServiceConnectResponseSchema>;
export type ProxyWelcomeInit = Exclude<MessageInitShape<typeof ProxyWelcomeSchema>, { $typeName: string }>;

/** A proxy that is further behind is cut off and starts anew. */
const MAX_QUEUED = 1_000;

export class ProxyConnection {
  readonly instanceId: string;
  readonly url: string;
  /** The session-token keys that the proxy was told last. */
  sessionTokenKeys = "";
  readonly outbox = new Outbox<Outgoing>(MAX_QUEUED);
  private lastHeardMs: number;
  private received = 0n;
  private sent = 0n;

  constructor({ instanceId, url }: ProxyHello, nowMs: number) {
    this.instanceId = instanceId;
    this.url = url;
    this.lastHeardMs = nowMs;
  }

  /** Comes first, and again whenever the keys have changed. */
  welcome(welcome: ProxyWelcomeInit & { sessionTokenKeys: string }): void {
    this.sessionTokenKeys = welcome.sessionTokenKeys;
    this.outbox.push({ kind: { case: "welcome", value: welcome } });
  }

  heard(nowMs: number, sequence?: bigint): void {
    this.lastHeardMs = nowMs;
    if (sequence !== undefined) this.received = sequence;
  }

  /** Sends a heartbeat, or ends the connection when the proxy was silent for longer than `timeoutMs` (H3). */
  beat(nowMs: number, timeoutMs: number): void {
    if (nowMs - this.lastHeardMs > timeoutMs) {
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

  /** The proxy is told to connect elsewhere; the stream ends once it has been. */
  drain(graceMs: number): void {
    this.outbox.push({ kind: { case: "draining", value: { grace: durationFromMs(graceMs) } } });
    this.end();
  }

  /** What is queued still goes out. */
  end(error?: TendonError): void {
    this.outbox.end(error);
  }
}
