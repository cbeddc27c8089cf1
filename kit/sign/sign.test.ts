import { generateKeyPairSync } from "node:crypto";
import { chmod, mkdtemp, readdir, rm, stat, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { Clock } from "../clock.ts";
import { systemClock } from "../clock.ts";
import { loadOrCreateKeyFile, type SigningKey, signingKeyFromPem } from "./key-file.ts";
import { hashSecret, newSecret, secretMatches } from "./secrets.ts";
import { type PublicKeys, signToken, verifyToken } from "./token.ts";

let directory: string;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), "tendon-sign-"));
});
afterAll(() => rm(directory, { recursive: true }));

const START_MS = 1_700_000_000_000;
const clockAt = (nowMs: number): Clock => ({ ...systemClock, nowMs: () => nowMs });
const newKey = () =>
  signingKeyFromPem(
    generateKeyPairSync("ed25519").privateKey.export({ type: "pkcs8", format: "pem" }) as string,
  );
const keysOf =
  (...keys: SigningKey[]): PublicKeys =>
  (kid) =>
    keys.find((key) => key.kid === kid)?.publicKey;

test("a key file is made once, with mode 0600, and gives the same key again", async () => {
  const path = join(directory, "deep", "signing.key");
  const all = await Promise.all(Array.from({ length: 5 }, () => loadOrCreateKeyFile(path)));
  expect(new Set(all.map(({ kid }) => kid)).size).toBe(1);
  expect((await loadOrCreateKeyFile(path)).publicKey).toEqual(all[0]!.publicKey);
  expect((await stat(path)).mode & 0o777).toBe(0o600);
  expect(await readdir(join(directory, "deep"))).toEqual(["signing.key"]);
});

test("a key file that others may read, or that holds no key, is refused with what to do", async () => {
  const path = join(directory, "open.key");
  await loadOrCreateKeyFile(path);
  await chmod(path, 0o640);
  await expect(loadOrCreateKeyFile(path)).rejects.toThrow(`run: chmod 600 ${path}`);
  const broken = join(directory, "broken.key");
  await writeFile(broken, "secret garbage", { mode: 0o600 });
  await expect(loadOrCreateKeyFile(broken)).rejects.toThrow(
    `cannot use the key file ${broken}: not a private key in PEM form`,
  );
  const { privateKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  await writeFile(broken, privateKey.export({ type: "pkcs8", format: "pem" }));
  await expect(loadOrCreateKeyFile(broken)).rejects.toThrow("not an Ed25519 key");
});

test("a token comes back with its subject, claims and times", async () => {
  const key = await newKey();
  const facts = { audience: "proxy", subject: "sesn_1", claims: { epoch: 3 } };
  const token = await signToken(key, facts, 900_000, clockAt(START_MS));
  const verified = await verifyToken(keysOf(key), token, {
    audience: "proxy",
    clock: clockAt(START_MS + 60_000),
  });
  expect(verified).toEqual({
    subject: "sesn_1",
    kid: key.kid,
    issuedAtMs: START_MS,
    expiresAtMs: START_MS + 900_000,
    claims: { epoch: 3 },
  });
});

test("a token runs out after its time and the allowed difference of clocks, and is not taken before its time", async () => {
  const key = await newKey();
  const token = await signToken(key, { audience: "a", subject: "s" }, 60_000, clockAt(START_MS));
  const verifyAt = (nowMs: number) =>
    verifyToken(keysOf(key), token, { audience: "a", clock: clockAt(nowMs), clockSkewMs: 10_000 });
  await verifyAt(START_MS + 69_000);
  await verifyAt(START_MS - 10_000);
  await expect(verifyAt(START_MS + 71_000)).rejects.toMatchObject({ reason: "KEY_EXPIRED" });
  await expect(verifyAt(START_MS - 11_000)).rejects.toMatchObject({ reason: "UNAUTHENTICATED" });
});

test("tokens of others, for others, changed, too long-lived or too long are refused alike", async () => {
  const [key, stranger] = await Promise.all([newKey(), newKey()]);
  const clock = clockAt(START_MS);
  const sign = (signer: SigningKey, audience: string, ttlMs = 60_000) =>
    signToken(signer, { audience, subject: "s" }, ttlMs, clock);
  const good = await sign(key, "a");
  const [header, payload, signature] = good.split(".") as [string, string, string];
  const forgedPayload = Buffer.from(JSON.stringify({ sub: "root", aud: "a", iat: 1, exp: 9e9 })).toString(
    "base64url",
  );
  const noneHeader = Buffer.from(JSON.stringify({ alg: "none", kid: key.kid })).toString("base64url");
  const bad = [
    await sign(stranger, "a"),
    await sign({ ...stranger, kid: key.kid }, "a"),
    await sign(key, "b"),
    await sign(key, "a", 48 * 3_600_000),
    `${header}.${forgedPayload}.${signature}`,
    `${noneHeader}.${payload}.`,
    "",
    "not a token",
    `${good}${"x".repeat(10_000)}`,
  ];
  for (const token of bad) {
    await expect(verifyToken(keysOf(key), token, { audience: "a", clock })).rejects.toMatchObject({
      reason: "UNAUTHENTICATED",
      message: "the token is not valid",
    });
  }
  await verifyToken(keysOf(key), good, { audience: "a", clock });
});

test("errors of whoever knows the keys are not mistaken for a bad token", async () => {
  const key = await newKey();
  const clock = clockAt(START_MS);
  const token = await signToken(key, { audience: "a", subject: "s" }, 60_000, clock);
  const failing: PublicKeys = () => Promise.reject(new Error("database gone"));
  await expect(verifyToken(failing, token, { audience: "a", clock })).rejects.toThrow("database gone");
});

test("secrets are long, random, and match their hash only", () => {
  const secret = newSecret("tk_");
  expect(secret).toMatch(/^tk_[A-Za-z0-9_-]{43}$/);
  expect(newSecret("tk_")).not.toBe(secret);
  expect(secretMatches(secret, hashSecret(secret))).toBe(true);
  expect(secretMatches(`${secret}x`, hashSecret(secret))).toBe(false);
  expect(secretMatches(secret, "")).toBe(false);
  expect(secretMatches(secret, "zz")).toBe(false);
});
