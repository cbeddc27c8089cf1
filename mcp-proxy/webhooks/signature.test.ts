import Anthropic from "@anthropic-ai/sdk";
import { expect, test } from "vitest";
import { webhookHeaders } from "./signature.ts";

const secretOf = (fill: number) => `whsec_${Buffer.alloc(32, fill).toString("base64")}`;
const BODY = JSON.stringify({ type: "event", id: "whevt_1", data: { type: "vault.created", id: "vlt_ü" } });
const client = new Anthropic({ apiKey: "none" });

test("existing clients find their key among the signatures, whichever of the secrets it is", () => {
  const head = { eventId: "whevt_1", nowMs: Date.now() };
  const headers = webhookHeaders(head, BODY, [secretOf(1), secretOf(2)])!;
  expect(headers["webhook-signature"]!.split(" ")).toHaveLength(2);
  for (const key of [secretOf(1), secretOf(2)])
    expect(client.beta.webhooks.unwrap(BODY, { headers: { ...headers }, key }).id).toBe("whevt_1");
  for (const [body, key] of [
    [BODY, secretOf(3)],
    [`${BODY} `, secretOf(1)],
  ] as const)
    expect(() => client.beta.webhooks.unwrap(body, { headers: { ...headers }, key })).toThrow();
  const old = webhookHeaders({ ...head, nowMs: head.nowMs - 301_000 }, BODY, [secretOf(1)])!;
  expect(() => client.beta.webhooks.unwrap(BODY, { headers: { ...old }, key: secretOf(1) })).toThrow();
});

test("nothing is signed with what is no signing secret", () => {
  const head = { eventId: "whevt_1", nowMs: 0 };
  for (const secret of ["", "whsec_", "a token", secretOf(1).slice(6)])
    expect(webhookHeaders(head, BODY, [secret])).toBeUndefined();
});
