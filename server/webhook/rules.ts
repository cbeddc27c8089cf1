/** What endpoints may be, and what follows from how an attempt ended (pure). */
import { invalidField } from "../../kit/errors.ts";
import type { WebhookAttempt } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { AttemptVerdict, WaitingDelivery } from "../store/webhooks.ts";
import { EVERY_TYPE, WEBHOOK_EVENT_TYPES } from "./event-types.ts";

const HOUR_MS = 3_600_000;
const FIRST_DELAY_MS = 2_000;
const MAX_DELAY_MS = HOUR_MS;
/** From the first attempt on. */
export const GIVE_UP_AFTER_MS = 24 * HOUR_MS;
/** Without one success in between. */
export const DISABLE_AFTER_MS = 3 * 24 * HOUR_MS;

const GONE = 410;

/** Throws INVALID_FIELD. Where the URL leads is looked at by the proxy, each time. */
export function checkUrl(text: string): void {
  if (!URL.canParse(text)) throw invalidField("url", "is no URL");
  const url = new URL(text);
  if (url.protocol !== "https:" && url.protocol !== "http:")
    throw invalidField(
      "url",
      "must be https:// (or http:// for a private address, where proxies allow these)",
    );
  if (url.username !== "" || url.password !== "")
    throw invalidField("url", "must hold no user and no password: requests are signed");
  if (url.hash !== "") throw invalidField("url", "must have no fragment");
}

/** Each once, in the order of asking. Throws INVALID_FIELD. */
export function checkedEvents(types: readonly string[]): string[] {
  const known: readonly string[] = [EVERY_TYPE, ...WEBHOOK_EVENT_TYPES];
  const wrong = types.findIndex((type) => !known.includes(type));
  if (wrong >= 0) {
    throw invalidField(
      `enabled_events[${wrong}]`,
      `"${types[wrong]?.slice(0, 100)}" is no type that endpoints can be told; there are ${known.join(", ")}`,
    );
  }
  return [...new Set(types)];
}

/** After so many tries that failed. */
export function retryDelayMs(tries: number, random: number): number {
  const window = Math.min(MAX_DELAY_MS, FIRST_DELAY_MS * 2 ** Math.min(tries - 1, 30));
  return window / 2 + random * (window / 2);
}

type Tried = Pick<WaitingDelivery, "tries" | "triedForMs" | "endpointFailingMs">;

/** `random`: from 0 to 1, for the delay. */
export function verdictOn(attempt: WebhookAttempt, before: Tried, random: number): AttemptVerdict {
  const { httpStatus: status } = attempt;
  if (status >= 200 && status < 300) return { kind: "delivered", status };
  const disable = reasonToDisable(attempt, before);
  const error = attempt.detail || `the receiver answered with ${status}`;
  const failure = { status, error, ...(disable && { disable }) };
  if ((before.triedForMs ?? 0) >= GIVE_UP_AFTER_MS) return { kind: "dead", ...failure };
  return { kind: "failed", retryAfterMs: retryDelayMs(before.tries + 1, random), ...failure };
}

function reasonToDisable(
  { httpStatus, problem, refused }: WebhookAttempt,
  before: Tried,
): string | undefined {
  if (httpStatus >= 300 && httpStatus < 400) return "redirected";
  if (httpStatus === GONE) return "gone";
  if (refused) return problem;
  return (before.endpointFailingMs ?? 0) >= DISABLE_AFTER_MS ? "failing" : undefined;
}
