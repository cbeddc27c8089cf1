/** Signatures of Standard Webhooks (pure). */
import { createHmac } from "node:crypto";

const SECRET = /^whsec_([A-Za-z0-9+/]{32,128}={0,2})$/;

export interface SignedHead {
  readonly eventId: string;
  /** Of the attempt, not of the event: receivers refuse what is older than five minutes. */
  readonly nowMs: number;
}

/** One signature for each secret, so that a receiver may know any of them. Undefined when one is no signing secret. */
export function webhookHeaders(
  { eventId, nowMs }: SignedHead,
  body: string,
  secrets: readonly string[],
): Readonly<Record<string, string>> | undefined {
  const timestamp = String(Math.floor(nowMs / 1000));
  const signatures: string[] = [];
  for (const secret of secrets) {
    const key = SECRET.exec(secret)?.[1];
    if (key === undefined) return undefined;
    const mac = createHmac("sha256", Buffer.from(key, "base64")).update(
      `${eventId}.${timestamp}.${body}`,
      "utf8",
    );
    signatures.push(`v1,${mac.digest("base64")}`);
  }
  return {
    "webhook-id": eventId,
    "webhook-timestamp": timestamp,
    "webhook-signature": signatures.join(" "),
  };
}
