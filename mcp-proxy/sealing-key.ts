/**
 * The key pairs that secrets are sealed to, newest first. The private halves exist in this process and where the operator
 * keeps them, nowhere else. All of them open, the newest seals; an old one can go when nothing is sealed to it any more.
 */
import { calculateJwkThumbprint, exportJWK, generateKeyPair, type JWK } from "jose";
import { messageOf } from "../kit/errors.ts";
import { createPrivateFile, readPrivateFile, replacePrivateFile } from "../kit/private-file.ts";
import { StartupError } from "../kit/program.ts";

/** P-256, because every KMS and every JOSE library knows it. */
const CURVE = "P-256";
const ALGORITHM = "ECDH-ES+A256KW";
/** As many as a proxy may publish. */
const MAX_KEYS = 16;

export interface SealingKeyPair {
  /** Thumbprint of the public half (RFC 7638). */
  readonly keyId: string;
  /** JSON text of the public JWK. */
  readonly publicJwk: string;
  readonly privateJwk: JWK;
}

/** At least one. */
export type SealingKeys = readonly [SealingKeyPair, ...SealingKeyPair[]];

export interface SealingKeySource {
  /** JSON text of a JWK or a JWK set; where it is set the file is not looked at. */
  readonly text: string | undefined;
  readonly path: string;
}

/** Throws a StartupError with one line when there are no such keys or others may read the file. */
export async function loadSealingKeys({ text, path }: SealingKeySource): Promise<SealingKeys> {
  if (text === undefined) return loadOrCreate(path);
  try {
    return await keysOf(text);
  } catch (error) {
    throw new StartupError(`cannot use TENDON_PROXY_SEALING_KEYS: ${messageOf(error)}`, 2);
  }
}

/** Puts a new key in front of those of the file. What is sealed to the others stays readable. */
export async function addSealingKey(path: string): Promise<SealingKeys> {
  const before = await loadOrCreate(path);
  if (before.length >= MAX_KEYS) {
    throw new StartupError(
      `${path} holds ${MAX_KEYS} keys, which is the limit; remove old ones from its end`,
      1,
    );
  }
  const keys = [await newPrivateJwk(), ...before.map(({ privateJwk }) => privateJwk)];
  await replacePrivateFile(path, `${JSON.stringify({ keys })}\n`);
  return loadOrCreate(path);
}

async function loadOrCreate(path: string): Promise<SealingKeys> {
  try {
    const existing = await readPrivateFile(path);
    if (existing !== undefined) return await keysOf(existing);
    await createPrivateFile(path, `${JSON.stringify(await newPrivateJwk())}\n`);
    return await keysOf((await readPrivateFile(path)) ?? "");
  } catch (error) {
    throw new StartupError(`cannot use the sealing key ${path}: ${messageOf(error)}`, 1);
  }
}

async function newPrivateJwk(): Promise<JWK> {
  const { privateKey } = await generateKeyPair(ALGORITHM, { crv: CURVE, extractable: true });
  return exportJWK(privateKey);
}

async function keysOf(text: string): Promise<SealingKeys> {
  let parsed: JWK | { keys: JWK[] };
  try {
    parsed = JSON.parse(text) as JWK | { keys: JWK[] };
  } catch {
    // What the parser says could repeat parts of the key.
    throw new Error("not a key in JWK form");
  }
  const list = Array.isArray((parsed as { keys?: unknown }).keys)
    ? (parsed as { keys: JWK[] }).keys
    : [parsed as JWK];
  if (list.length > MAX_KEYS) throw new Error(`more than ${MAX_KEYS} keys`);
  const [newest, ...others] = await Promise.all(list.map(keyPairOf));
  if (newest === undefined) throw new Error("a key set without keys");
  return [newest, ...others];
}

async function keyPairOf(jwk: JWK): Promise<SealingKeyPair> {
  const { kty, crv, x, y, d } = jwk ?? {};
  if (kty !== "EC" || crv !== CURVE || !x || !y || !d)
    throw new Error(`not a private ${CURVE} key in JWK form`);
  const publicHalf = { kty, crv, x, y };
  return {
    keyId: await calculateJwkThumbprint(publicHalf),
    publicJwk: JSON.stringify({ ...publicHalf, alg: ALGORITHM, use: "enc" }),
    privateJwk: { ...publicHalf, d },
  };
}
