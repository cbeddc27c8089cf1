/** A program's Ed25519 key in a file that only it can read. */
import { createPrivateKey, createPublicKey, generateKeyPairSync, type KeyObject } from "node:crypto";
import { calculateJwkThumbprint } from "jose";
import { messageOf } from "../errors.ts";
import { createPrivateFile, readPrivateFile } from "../private-file.ts";

/** The public half, as others keep it: JSON that holds no secret. */
export interface PublicKeyJwk {
  readonly kty: "OKP";
  readonly crv: "Ed25519";
  readonly x: string;
}

export interface SigningKey {
  /** The public key's thumbprint (RFC 7638): the same key has the same id everywhere. */
  readonly kid: string;
  readonly privateKey: KeyObject;
  readonly publicKey: PublicKeyJwk;
}

/**
 * The key in the file, which is made with mode 0600 if there is none. Programs that start at once agree on one key.
 * Throws an Error with one clear line when the file is no such key or when others may read it.
 */
export async function loadOrCreateKeyFile(path: string): Promise<SigningKey> {
  const existing = await readKeyFile(path);
  if (existing !== undefined) return existing;
  const { privateKey } = generateKeyPairSync("ed25519");
  await createPrivateFile(path, privateKey.export({ type: "pkcs8", format: "pem" }) as string);
  const created = await readKeyFile(path);
  if (created === undefined) throw new Error(`${path} vanished right after it was made`);
  return created;
}

/** The key of a PEM text, for programs that get it as a secret setting. */
export async function signingKeyFromPem(pem: string): Promise<SigningKey> {
  let privateKey: KeyObject;
  try {
    privateKey = createPrivateKey(pem);
  } catch {
    // What the library says could repeat parts of the key.
    throw new Error("not a private key in PEM form");
  }
  if (privateKey.asymmetricKeyType !== "ed25519") throw new Error("not an Ed25519 key");
  const { x } = createPublicKey(privateKey).export({ format: "jwk" });
  const publicKey: PublicKeyJwk = { kty: "OKP", crv: "Ed25519", x: x! };
  return { kid: await keyId(publicKey), privateKey, publicKey };
}

/** The id that tokens signed by this key carry. */
export function keyId(publicKey: PublicKeyJwk): Promise<string> {
  return calculateJwkThumbprint({ ...publicKey });
}

async function readKeyFile(path: string): Promise<SigningKey | undefined> {
  try {
    const pem = await readPrivateFile(path);
    return pem === undefined ? undefined : await signingKeyFromPem(pem);
  } catch (error) {
    throw new Error(`cannot use the key file ${path}: ${messageOf(error)}`);
  }
}
