/** The key pair that secrets are sealed to. The private half exists in this process and in one file, nowhere else. */
import { calculateJwkThumbprint, exportJWK, generateKeyPair, type JWK } from "jose";
import { messageOf } from "../kit/errors.ts";
import { createPrivateFile, readPrivateFile } from "../kit/private-file.ts";
import { StartupError } from "../kit/program.ts";

/** P-256, because every KMS and every JOSE library knows it. */
const CURVE = "P-256";
const ALGORITHM = "ECDH-ES+A256KW";

export interface SealingKeyPair {
  /** Thumbprint of the public half (RFC 7638). */
  readonly keyId: string;
  /** JSON text of the public JWK. */
  readonly publicJwk: string;
  readonly privateJwk: JWK;
}

/** Throws a StartupError with one line when the file is no such key or others may read it. */
export async function loadOrCreateSealingKey(path: string): Promise<SealingKeyPair> {
  try {
    const existing = await readPrivateFile(path);
    if (existing !== undefined) return await fromJwk(existing);
    const { privateKey } = await generateKeyPair(ALGORITHM, { crv: CURVE, extractable: true });
    await createPrivateFile(path, `${JSON.stringify(await exportJWK(privateKey))}\n`);
    return await fromJwk((await readPrivateFile(path)) ?? "");
  } catch (error) {
    throw new StartupError(`cannot use the sealing key ${path}: ${messageOf(error)}`, 1);
  }
}

async function fromJwk(text: string): Promise<SealingKeyPair> {
  let jwk: JWK;
  try {
    jwk = JSON.parse(text) as JWK;
  } catch {
    // What the parser says could repeat parts of the key.
    throw new Error("not a key in JWK form");
  }
  const { kty, crv, x, y, d } = jwk;
  if (kty !== "EC" || crv !== CURVE || !x || !y || !d)
    throw new Error(`not a private ${CURVE} key in JWK form`);
  const publicHalf = { kty, crv, x, y };
  return {
    keyId: await calculateJwkThumbprint(publicHalf),
    publicJwk: JSON.stringify({ ...publicHalf, alg: ALGORITHM, use: "enc" }),
    privateJwk: jwk,
  };
}
