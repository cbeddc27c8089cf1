/**
 * The authorities whose certificates the proxy shows to sandboxes: one for each workspace and sealing key. Their keys are
 * derived from the sealing keys, so they are kept nowhere, all proxies with the same sealing keys have the same ones, and
 * they end with them. Each is a root of its own: Python before 3.13 and Node do not take an authority below a root for
 * the end of a chain, and a root above all workspaces would have one's sandboxes trust another's.
 */
import "reflect-metadata";
import { createECDH, createHash, hkdfSync, webcrypto } from "node:crypto";
import {
  BasicConstraintsExtension,
  cryptoProvider,
  KeyUsageFlags,
  KeyUsagesExtension,
  SubjectKeyIdentifierExtension,
  type X509Certificate,
  X509CertificateGenerator,
} from "@peculiar/x509";
import type { SealingKeyPair, SealingKeys } from "../sealing-key.ts";

cryptoProvider.set(webcrypto as never);

export const CURVE = { name: "ECDSA", namedCurve: "P-256" } as const;
export const SIGNATURE = { name: "ECDSA", hash: "SHA-256" } as const;

const SALT = "tendon sandbox authority 1";
/** Order of P-256. */
const ORDER = 0xffffffff00000000ffffffffffffffffbce6faada7179e84f3b9cac2fc632551n;
/** More than the scalar has, so that no value of it is likelier than another. */
const DERIVED_BYTES = 48;
const SCALAR_BYTES = 32;
/** Fixed, so that all proxies make the same. What ends it is the end of its sealing key. */
const NOT_BEFORE = new Date("2020-01-01T00:00:00Z");
const NOT_AFTER = new Date("2049-12-31T00:00:00Z");
const MAX_KEPT = 1_000;

export interface Authority {
  readonly certificate: X509Certificate;
  readonly publicKey: webcrypto.CryptoKey;
  /** Cannot be exported. */
  readonly privateKey: webcrypto.CryptoKey;
}

export class Authorities {
  private readonly keys: SealingKeys;
  private readonly kept = new Map<string, Promise<Authority>>();

  constructor(keys: SealingKeys) {
    this.keys = keys;
  }

  /** What sandboxes of the workspace trust, PEM: those of all keys, so that one that is made now outlives a new key. */
  async certificatesOf(workspaceId: string): Promise<string> {
    const all = await Promise.all(this.keys.map((key) => this.of(workspaceId, key)));
    return all.map(({ certificate }) => `${certificate.toString("pem")}\n`).join("");
  }

  /** That of the oldest key signs: hands that were made before there was a newer one trust no other. */
  signing(workspaceId: string): Promise<Authority> {
    return this.of(workspaceId, this.keys.at(-1) ?? this.keys[0]);
  }

  private of(workspaceId: string, key: SealingKeyPair): Promise<Authority> {
    const name = `${key.keyId} ${workspaceId}`;
    const known = this.kept.get(name);
    if (known !== undefined) return known;
    const made = createAuthority(workspaceId, key);
    this.kept.set(name, made);
    made.catch(() => this.kept.delete(name));
    if (this.kept.size > MAX_KEPT) this.kept.delete(this.kept.keys().next().value ?? "");
    return made;
  }
}

async function createAuthority(
  workspaceId: string,
  { privateJwk, keyId }: SealingKeyPair,
): Promise<Authority> {
  const { privateKey, publicKey } = await deriveKeys(privateJwk.d ?? "", workspaceId);
  const mark = createHash("sha256").update(`${keyId} ${workspaceId}`).digest("hex");
  const certificate = await X509CertificateGenerator.createSelfSigned({
    serialNumber: `4${mark.slice(0, 31)}`,
    // Another name for each key, so that clients that know several tell them apart.
    name: `CN=Tendon sandboxes ${mark.slice(0, 12)}`,
    notBefore: NOT_BEFORE,
    notAfter: NOT_AFTER,
    signingAlgorithm: SIGNATURE,
    keys: { privateKey, publicKey },
    extensions: [
      new BasicConstraintsExtension(true, 0, true),
      new KeyUsagesExtension(KeyUsageFlags.keyCertSign | KeyUsageFlags.cRLSign, true),
      await SubjectKeyIdentifierExtension.create(publicKey),
    ],
  });
  return { certificate, privateKey, publicKey };
}

async function deriveKeys(secret: string, workspaceId: string): Promise<webcrypto.CryptoKeyPair> {
  const material = Buffer.from(secret, "base64url");
  const derived = Buffer.from(hkdfSync("sha256", material, SALT, workspaceId, DERIVED_BYTES));
  const scalar = (BigInt(`0x${derived.toString("hex")}`) % (ORDER - 1n)) + 1n;
  const d = Buffer.from(scalar.toString(16).padStart(2 * SCALAR_BYTES, "0"), "hex");
  const pair = createECDH("prime256v1");
  pair.setPrivateKey(d);
  const point = pair.getPublicKey();
  const publicJwk = {
    kty: "EC",
    crv: "P-256",
    x: point.subarray(1, 1 + SCALAR_BYTES).toString("base64url"),
    y: point.subarray(1 + SCALAR_BYTES).toString("base64url"),
  };
  const { subtle } = webcrypto;
  const [privateKey, publicKey] = await Promise.all([
    subtle.importKey("jwk", { ...publicJwk, d: d.toString("base64url") }, CURVE, false, ["sign"]),
    subtle.importKey("jwk", publicJwk, CURVE, true, ["verify"]),
  ]);
  return { privateKey, publicKey } as webcrypto.CryptoKeyPair;
}
