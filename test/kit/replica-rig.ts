/** What tests of several replicas need: brains and hand agents that may be anywhere, and calls that are looked at byte by byte. */
import { createHash, generateKeyPairSync } from "node:crypto";
import { expect } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { signToken } from "../../kit/sign/token.ts";
import type { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandAgentService } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ExecuteResponse } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import type { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { HAND_AGENT_AUDIENCE } from "../../server/rpc/authenticate.ts";
import { eventually } from "./eventually.ts";
import { type ScriptedAgentOptions, ScriptedHandAgent } from "./scripted-hand-agent.ts";

/** Enrols at a server, as a real agent does; it is not connected yet. */
export async function enrolledAgent(
  server: { readonly url: string; readonly admin: Client<typeof AdminService> },
  options: Partial<ScriptedAgentOptions> = {},
): Promise<ScriptedHandAgent> {
  const { secret } = await server.admin.createJoinToken({});
  const { privateKey, publicKey } = generateKeyPairSync("ed25519");
  const raw = Buffer.from(String(publicKey.export({ format: "jwk" }).x), "base64url");
  const connection = dial({ url: server.url, proxy: {} });
  try {
    const { handAgentId } = await connection
      .client(HandAgentService)
      .enroll({ joinToken: secret, publicKey: raw, name: "scripted" });
    const key = { kid: handAgentId, privateKey } as unknown as Parameters<typeof signToken>[0];
    const claims = { audience: HAND_AGENT_AUDIENCE, subject: handAgentId };
    const token = await signToken(key, claims, 5 * 60_000, systemClock);
    return new ScriptedHandAgent({
      handAgentId,
      url: server.url,
      token,
      journalId: newId("request"),
      ...options,
    });
  } finally {
    connection.close();
  }
}

export interface ToolUse {
  readonly sessionId: string;
  readonly executionId: string;
  readonly name: string;
  readonly input: string;
  readonly lease: LeaseProof;
}

/** Puts a tool use into the session's log, as its brain. */
export async function toolUse(
  sessions: Client<typeof SessionService>,
  sessionId: string,
  lease: LeaseProof,
  input: Record<string, unknown> = {},
): Promise<ToolUse> {
  const executionId = newId("event");
  const payload = JSON.stringify({ name: "bash", input });
  await sessions.emitEvents({
    sessionId,
    events: [{ id: executionId, type: "agent.tool_use", payload }],
    lease,
  });
  return { sessionId, executionId, name: "bash", input: JSON.stringify(input), lease };
}

export interface Ran {
  output: Buffer;
  /** Offsets that did not follow on what came before. */
  gaps: number[];
  result: ExecutionResult | undefined;
}

/** Reads an execution to its end. */
export async function collectCall(
  responses: AsyncIterable<ExecuteResponse>,
  onOutput: (ran: Ran) => void = () => {},
): Promise<Ran> {
  const ran: Ran = { output: Buffer.alloc(0), gaps: [], result: undefined };
  const pieces: Uint8Array[] = [];
  let bytes = 0;
  for await (const { kind } of responses) {
    if (kind.case === "output") {
      if (Number(kind.value.offset) !== bytes) ran.gaps.push(Number(kind.value.offset));
      pieces.push(kind.value.data);
      bytes = Number(kind.value.offset) + kind.value.data.length;
      onOutput(ran);
    } else if (kind.case === "result") ran.result = kind.value;
  }
  ran.output = Buffer.concat(pieces);
  return ran;
}

/** Bytes that differ at every place, so that a piece which comes twice or is missing shows. */
export function tellTaleBytes(length: number): Buffer {
  const bytes = Buffer.alloc(length);
  for (let offset = 0, block = 0; offset < length; offset += 32, block += 1) {
    createHash("sha256").update(String(block)).digest().copy(bytes, offset);
  }
  return bytes;
}

/** Longer than replicas try to pass previews on. */
const SHOWN_WITHIN_MS = 3_000;
const MOST_SHOWN = 30;

/**
 * Has one text after the other shown, until one was seen from its beginning to its end in all of these places: what a machine
 * is too slow for is lost, as previews may be (L5). `show` gives what is to be seen. Resolves with how many it were.
 */
export async function untilShownWhole(
  places: readonly { previewText(): string }[],
  show: (number: number) => Promise<string>,
): Promise<number> {
  for (let number = 0; number < MOST_SHOWN; number += 1) {
    const whole = await show(number);
    const isSeen = () => places.every((one) => one.previewText().includes(whole));
    if (await eventually(isSeen, { withinMs: SHOWN_WITHIN_MS }).catch(() => false)) return number + 1;
  }
  throw new Error(`of ${MOST_SHOWN} texts none was shown from its beginning to its end everywhere`);
}

/** Of a text of pieces with numbers such as 1.12: of which text, and where in it. */
export function expectOnceInOrder(text: string): void {
  const pieces = [...text.matchAll(/(\d+)\.(\d+)\s/g)].map(([, of, at]) => Number(of) * 100 + Number(at));
  expect(pieces).toEqual([...new Set(pieces)].sort((one, other) => one - other));
}
