import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { loadOrCreateKeyFile, type SigningKey } from "../kit/sign/key-file.ts";
import { SESSION_TOKEN_AUDIENCE, signToken } from "../kit/sign/token.ts";
import { FakeClock } from "../test/kit/fake-clock.ts";
import { SessionTokenKeys } from "./session-token.ts";

let folder: string;
let key: SigningKey;

beforeAll(async () => {
  folder = await mkdtemp(join(tmpdir(), "tendon-session-token-"));
  key = await loadOrCreateKeyFile(join(folder, "session-token.key"));
});
afterAll(async () => {
  await rm(folder, { recursive: true, force: true });
});

async function knownKeys(clock: FakeClock): Promise<SessionTokenKeys> {
  const keys = new SessionTokenKeys(clock);
  await keys.replace(JSON.stringify({ keys: [key.publicKey] }));
  return keys;
}

const tokenOf = (clock: FakeClock, ttlMs: number) =>
  signToken(
    key,
    { audience: SESSION_TOKEN_AUDIENCE, subject: "sesn_1", claims: { workspace: "wrkspc_1", epoch: "3" } },
    ttlMs,
    clock,
  );

test("a session token that comes before the server has said its keys is not called invalid", async () => {
  const clock = new FakeClock();
  const keys = new SessionTokenKeys(clock);
  const token = await tokenOf(clock, 60_000);
  await expect(keys.verify(token)).rejects.toMatchObject({ reason: "UNAVAILABLE" });
  await keys.replace(JSON.stringify({ keys: [key.publicKey] }));
  expect(await keys.verify(token)).toMatchObject({ sessionId: "sesn_1" });
});

describe("a session token that was found good before", () => {
  test("is refused once its time is over", async () => {
    const clock = new FakeClock();
    const keys = await knownKeys(clock);
    const token = await tokenOf(clock, 60_000);
    const caller = { sessionId: "sesn_1", workspaceId: "wrkspc_1", epoch: 3n };
    expect(await keys.verify(token)).toEqual(caller);
    expect(await keys.verify(token)).toEqual(caller);
    await clock.advance(10 * 60_000);
    await expect(keys.verify(token)).rejects.toMatchObject({ reason: "KEY_EXPIRED" });
  });

  test("is refused once the server does not publish the key any more that has signed it", async () => {
    const clock = new FakeClock();
    const keys = await knownKeys(clock);
    const token = await tokenOf(clock, 60_000);
    await keys.verify(token);
    await keys.replace(JSON.stringify({ keys: [] }));
    await expect(keys.verify(token)).rejects.toMatchObject({ reason: "UNAUTHENTICATED" });
  });
});
