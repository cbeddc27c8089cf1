import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { WebhookAttemptSchema } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { payloadOf } from "./payload.ts";
import {
  checkedEvents,
  checkUrl,
  DISABLE_AFTER_MS,
  GIVE_UP_AFTER_MS,
  retryDelayMs,
  verdictOn,
} from "./rules.ts";

function wrongField(run: () => unknown): string | undefined {
  try {
    run();
    return undefined;
  } catch (error) {
    if (isTendonError(error, "INVALID_FIELD")) return error.metadata.field;
    throw error;
  }
}

const FRESH = { tries: 0, triedForMs: undefined, endpointFailingMs: undefined };
const after = (
  attempt: MessageInitShape<typeof WebhookAttemptSchema>,
  before: Partial<typeof FRESH> | object = {},
) => verdictOn(create(WebhookAttemptSchema, attempt), { ...FRESH, ...before }, 1);

test("a URL names a place on the web and holds no secrets", () => {
  for (const url of ["https://hooks.example/x?y=1", "https://10.0.0.1:8443/", "http://localhost:9/x"])
    expect(wrongField(() => checkUrl(url))).toBeUndefined();
  for (const url of [
    "nothing at all",
    "ftp://a.example/",
    "hand-agent://pool/host",
    "https://u:p@a.example/",
    "https://a.example/#x",
  ])
    expect(wrongField(() => checkUrl(url))).toBe("url");
});

test("types are those that there are, each once", () => {
  expect(checkedEvents(["vault.created", "*", "vault.created"])).toEqual(["vault.created", "*"]);
  expect(wrongField(() => checkedEvents(["vault.created", "session.idled"]))).toBe("enabled_events[1]");
});

test("delays double with jitter up to an hour, and fill a day with about thirty attempts", () => {
  expect([1, 2, 3].map((tries) => retryDelayMs(tries, 1))).toEqual([2_000, 4_000, 8_000]);
  expect(retryDelayMs(1, 0)).toBe(1_000);
  expect(retryDelayMs(40, 1)).toBe(3_600_000);
  let attempts = 1;
  for (let at = 0; at < GIVE_UP_AFTER_MS; attempts += 1) at += retryDelayMs(attempts, 0.5);
  expect(attempts).toBeGreaterThan(25);
  expect(attempts).toBeLessThan(60);
});

test("any 2xx is a success, anything else is tried again for a day and is dead then", () => {
  for (const httpStatus of [200, 202, 204, 299])
    expect(after({ httpStatus })).toEqual({ kind: "delivered", status: httpStatus });
  for (const httpStatus of [400, 404, 429, 500, 503])
    expect(after({ httpStatus })).toMatchObject({ kind: "failed", status: httpStatus, retryAfterMs: 2_000 });
  const late = after(
    { problem: "timeout", detail: "no answer" },
    { triedForMs: GIVE_UP_AFTER_MS, tries: 30 },
  );
  expect(late).toEqual({ kind: "dead", status: 0, error: "no answer" });
});

test("a redirect, 410 and what the rules refuse disable the endpoint at once, three days without a success too", () => {
  const reasonFor = (attempt: MessageInitShape<typeof WebhookAttemptSchema>, failingMs?: number) => {
    const verdict = after(attempt, { endpointFailingMs: failingMs });
    return "disable" in verdict ? verdict.disable : undefined;
  };
  expect(reasonFor({ httpStatus: 302 })).toBe("redirected");
  expect(reasonFor({ httpStatus: 410 })).toBe("gone");
  expect(reasonFor({ problem: "address_not_allowed", refused: true })).toBe("address_not_allowed");
  expect(reasonFor({ problem: "unreachable" })).toBeUndefined();
  expect(reasonFor({ httpStatus: 500 }, DISABLE_AFTER_MS - 1)).toBeUndefined();
  expect(reasonFor({ httpStatus: 500 }, DISABLE_AFTER_MS)).toBe("failing");
});

test("a body holds ids alone, and is the same for every attempt", () => {
  const told = {
    ...{ eventId: "whevt_1", type: "session.thread_idled", subjectId: "sesn_1", workspaceId: "wrkspc_1" },
    happenedAt: new Date("2026-01-31T12:00:00.123Z"),
    more: '{"session_thread_id":"sthr_1"}',
  };
  expect(payloadOf(told, "inst_1")).toBe(
    '{"type":"event","id":"whevt_1","created_at":"2026-01-31T12:00:00.123Z","data":{"type":"session.thread_idled","id":"sesn_1","organization_id":"inst_1","workspace_id":"wrkspc_1","session_thread_id":"sthr_1"}}',
  );
});
