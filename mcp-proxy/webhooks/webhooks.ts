/**
 * Delivers webhooks, one attempt for each time that the server asks: opens the signing secrets, signs, sends, and says how it
 * ended. What a receiver answers besides its status is read as far as the connection needs it, and forgotten.
 */
import { type Clock, within } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { Logger } from "../../kit/log.ts";
import type { AskCheckWebhookUrl, AskDeliverWebhook } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { Answer } from "../credentials/asks.ts";
import type { Opener } from "../credentials/opener.ts";
import { CredentialRefusal } from "../credentials/refusal.ts";
import { boundedText } from "../outbound/bounded-text.ts";
import type { OutboundFetch } from "../outbound/fetch.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";
import { webhookHeaders } from "./signature.ts";

export interface WebhooksDeps {
  readonly opener: Pick<Opener, "openSigningSecret">;
  /** By the rules for webhooks. */
  readonly fetch: OutboundFetch;
  /** What these say of a URL without asking for names. Throws an OutboundRefusal. */
  readonly check: (url: string) => void;
  readonly clock: Clock;
  readonly log: Logger;
}

type Delivery = Omit<AskDeliverWebhook, "$typeName" | "$unknown" | "askId">;

/** From the first byte to the last. */
const DELIVER_WITHIN_MS = 15_000;
/** Of an answer; with a longer one the connection ends. */
const MAX_ANSWER_BYTES = 64 * 1024;
/** At once; the server asks for far fewer. */
const MAX_AT_ONCE = 256;

const TOO_LATE = "the receiver did not answer within 15 seconds";

export class Webhooks {
  private readonly deps: WebhooksDeps;
  private readonly running = new Set<Promise<Answer>>();
  private resting = false;

  constructor(deps: WebhooksDeps) {
    this.deps = deps;
  }

  /** Does not reject. */
  deliver(ask: Delivery): Promise<Answer> {
    if (this.resting) return Promise.resolve({ reason: "DRAINING", message: "the proxy stops" });
    if (this.running.size >= MAX_AT_ONCE)
      return Promise.resolve({
        reason: "LIMIT_EXCEEDED",
        message: "the proxy sends enough webhooks already",
      });
    const running = this.answered(ask).finally(() => this.running.delete(running));
    this.running.add(running);
    return running;
  }

  /** Whether a webhook may go there, as far as that can be told at once. */
  checkUrl({ url }: Pick<AskCheckWebhookUrl, "url">): Answer {
    try {
      this.deps.check(url);
      return { webhookAttempt: {} };
    } catch (error) {
      if (error instanceof OutboundRefusal) return { webhookAttempt: refusedAttempt(error) };
      throw error;
    }
  }

  /** Takes nothing more, and waits for what is on its way: whether it has arrived is told while somebody listens. */
  async rest(): Promise<void> {
    this.resting = true;
    const all = Promise.all(this.running);
    await within(this.deps.clock, DELIVER_WITHIN_MS, all, () => new Error(TOO_LATE)).catch(() => {});
  }

  private async answered(ask: Delivery): Promise<Answer> {
    try {
      return await this.attempt(ask);
    } catch (error) {
      if (error instanceof CredentialRefusal) return { reason: error.reason, message: error.message };
      this.deps.log.error(
        { endpointId: ask.endpointId, error: messageOf(error) },
        "a webhook could not be delivered",
      );
      return { reason: "UNAVAILABLE", message: "the proxy failed; it is tried again" };
    }
  }

  private async attempt(ask: Delivery): Promise<Answer> {
    const { opener, clock } = this.deps;
    const secrets: string[] = [];
    for (const sealed of ask.sealedSecrets) secrets.push(await opener.openSigningSecret(sealed, ask));
    const { eventId, body } = ask;
    const signed = webhookHeaders({ eventId, nowMs: clock.nowMs() }, body, secrets);
    if (signed === undefined || secrets.length === 0)
      throw new CredentialRefusal("SEAL_BROKEN", "what is sealed is no signing secret");
    const headers = { ...signed, "content-type": "application/json", "user-agent": "Tendon-Webhooks/1" };
    failpoint("proxy.webhook_signed");
    const webhookAttempt = await this.send(ask.url, headers, body);
    failpoint("proxy.webhook_answered");
    return { webhookAttempt };
  }

  private async send(url: string, headers: Readonly<Record<string, string>>, body: string) {
    const limit = new AbortController();
    const stop = this.deps.clock.after(DELIVER_WITHIN_MS, () => limit.abort(new Error(TOO_LATE)));
    const { signal } = limit;
    try {
      const answer = await this.deps.fetch(url, {
        method: "POST",
        headers,
        body,
        signal,
        redirect: "manual",
      });
      // The status has come: nothing that follows changes what it says.
      await boundedText(answer, MAX_ANSWER_BYTES, signal).catch(() => undefined);
      return { httpStatus: answer.status };
    } catch (error) {
      if (error instanceof OutboundRefusal) return refusedAttempt(error);
      if (signal.aborted) return { problem: "timeout", detail: TOO_LATE };
      throw error;
    } finally {
      stop();
    }
  }
}

function refusedAttempt({ reason, message, isDenial }: OutboundRefusal) {
  return { problem: reason, detail: message.slice(0, 1000), refused: isDenial };
}
