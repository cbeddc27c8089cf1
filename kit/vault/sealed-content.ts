/**
 * Seals a secret together with its use (S1): a compact JWE that only the holder of the private key opens. Opening it is the
 * proxy's alone and stands in mcp-proxy.
 */
import { type MessageShape, toJsonString } from "@bufbuild/protobuf";
import { CompactEncrypt, calculateJwkThumbprint, decodeProtectedHeader, importJWK, type JWK } from "jose";
import { SealedContentSchema } from "../../proto/gen/tendon/v1/vault_service_pb.js";

export const SEALING_ALGORITHM = "ECDH-ES+A256KW";
export const CONTENT_ENCRYPTION = "A256GCM";
export const SEALED_VERSION = 1;
/** Of a sealed text, in characters. */
export const MAX_SEALED_CHARS = 65_536;

export interface PublicSealingKey {
  readonly keyId: string;
  /** JSON text of a JWK. */
  readonly publicJwk: string;
}

/** A sealed text or a key is not what it should be. The message repeats nothing of it. */
export class SealError extends Error {
  override readonly name = "SealError";
}

/** Throws a SealError for a key that is none, or that has another id than it says, and for a secret that is too large. */
export async function sealContent(
  key: PublicSealingKey,
  content: MessageShape<typeof SealedContentSchema>,
): Promise<string> {
  const publicKey = await importKey(key);
  const text = new TextEncoder().encode(toJsonString(SealedContentSchema, content));
  const sealed = await new CompactEncrypt(text)
    .setProtectedHeader({ alg: SEALING_ALGORITHM, enc: CONTENT_ENCRYPTION, kid: key.keyId })
    .encrypt(publicKey);
  if (sealed.length > MAX_SEALED_CHARS) throw new SealError("the secret is too large");
  return sealed;
}

/** A row that names one key and holds another would be a way to read what is sealed next. */
async function importKey({ keyId, publicJwk }: PublicSealingKey) {
  try {
    const jwk = JSON.parse(publicJwk) as JWK;
    if ((await calculateJwkThumbprint(jwk)) === keyId) return await importJWK(jwk, SEALING_ALGORITHM);
  } catch {
    // Said below.
  }
  throw new SealError(`the sealing key "${keyId}" is not what its id says`);
}

const PARTS = [/^[\w-]{1,4096}$/, /^[\w-]{1,1024}$/, /^[\w-]{16}$/, /^[\w-]+$/, /^[\w-]{22}$/];

/** What can be told of a sealed text without the key: the id of the one that it is sealed to. Throws a SealError. */
export function readSealed(sealed: string): { readonly keyId: string } {
  if (sealed.length > MAX_SEALED_CHARS)
    throw new SealError(`must have at most ${MAX_SEALED_CHARS} characters`);
  const parts = sealed.split(".");
  const isCompact = parts.length === PARTS.length && parts.every((part, index) => PARTS[index]!.test(part));
  if (!isCompact) throw new SealError("must be a compact JWE");
  const { alg, enc, kid, epk, ...more } = headerOf(sealed);
  if (alg !== SEALING_ALGORITHM || enc !== CONTENT_ENCRYPTION) {
    throw new SealError(`must be sealed with ${SEALING_ALGORITHM} and ${CONTENT_ENCRYPTION}`);
  }
  if (typeof kid !== "string" || !/^[\w-]{43}$/.test(kid)) throw new SealError("must name its key as kid");
  if (typeof epk !== "object" || "zip" in more || "crit" in more)
    throw new SealError("has a header that is not allowed");
  return { keyId: kid };
}

function headerOf(sealed: string): Record<string, unknown> {
  try {
    return decodeProtectedHeader(sealed) as Record<string, unknown>;
  } catch {
    throw new SealError("must be a compact JWE");
  }
}
