/** Signed statements of a server that a log had this hash at this position at this time (Ed25519). */
import { createPublicKey, sign, verify } from "node:crypto";
import type { SigningKey } from "../sign/key-file.ts";
import { framed } from "./event-hash.ts";

export interface CheckpointFacts {
  readonly sessionId: string;
  readonly position: number;
  /** Of the event there, lower-case hex. */
  readonly hash: string;
  /** By the clock of the server that signed. */
  readonly signedAt: Date;
}

export interface Checkpoint extends CheckpointFacts {
  /** 32 bytes in base64url, the `x` of a JWK. */
  readonly publicKey: string;
  /** 64 bytes. */
  readonly signature: Uint8Array;
}

export function signCheckpoint(key: SigningKey, facts: CheckpointFacts): Checkpoint {
  return { ...facts, publicKey: key.publicKey.x, signature: sign(null, bytesOf(facts), key.privateKey) };
}

/** Whether the signature is that of its public key. Whose key that is, is for the caller to know. */
export function isSigned(checkpoint: Checkpoint): boolean {
  try {
    const jwk = { kty: "OKP", crv: "Ed25519", x: checkpoint.publicKey };
    const key = createPublicKey({ key: jwk, format: "jwk" });
    return verify(null, bytesOf(checkpoint), key, checkpoint.signature);
  } catch {
    // Not a key at all.
    return false;
  }
}

/** Tokens are signed with the same key: those begin with a letter, this with a digit. */
function bytesOf({ sessionId, position, hash, signedAt }: CheckpointFacts): Buffer {
  const fields = ["tendon.checkpoint.1", sessionId, String(position), hash, String(signedAt.getTime())];
  return Buffer.from(framed(fields), "utf8");
}
