/** What the proxy shows to a sandbox that asks for a host: made when it is first asked for, kept for a while, never stored. */
import { createHash, randomBytes, webcrypto } from "node:crypto";
import { isIP } from "node:net";
import { createSecureContext, type SecureContext } from "node:tls";
import {
  AuthorityKeyIdentifierExtension,
  BasicConstraintsExtension,
  ExtendedKeyUsage,
  ExtendedKeyUsageExtension,
  KeyUsageFlags,
  KeyUsagesExtension,
  SubjectAlternativeNameExtension,
  X509CertificateGenerator,
} from "@peculiar/x509";
import type { Clock } from "../../kit/clock.ts";
import { type Authorities, CURVE, SIGNATURE } from "./authorities.ts";

const DAY_MS = 86_400_000;
/** Clocks of sandboxes may be behind. */
const BEFORE_MS = DAY_MS;
const VALID_MS = 7 * DAY_MS;
const RENEW_MS = DAY_MS;
const MAX_KEPT = 1_000;

interface Kept {
  readonly context: Promise<SecureContext>;
  readonly untilMs: number;
}

interface LeafKeys {
  readonly pem: string;
  readonly publicKey: webcrypto.CryptoKey;
}

export class LeafCertificates {
  private readonly authorities: Authorities;
  private readonly clock: Clock;
  private readonly kept = new Map<string, Kept>();
  /** One pair for all of them: it is this process's own, and says nothing about a host. */
  private keys: Promise<LeafKeys> | undefined;

  constructor(authorities: Authorities, clock: Clock) {
    this.authorities = authorities;
    this.clock = clock;
  }

  /** `host` as a sandbox names it in CONNECT, an IPv6 address without brackets. */
  contextFor(workspaceId: string, host: string): Promise<SecureContext> {
    const name = `${workspaceId} ${host}`;
    const nowMs = this.clock.nowMs();
    const known = this.kept.get(name);
    // The one that was asked for last is the last to go.
    this.kept.delete(name);
    if (known !== undefined && known.untilMs > nowMs) {
      this.kept.set(name, known);
      return known.context;
    }
    const context = this.create(workspaceId, host, nowMs);
    this.kept.set(name, { context, untilMs: nowMs + RENEW_MS });
    context.catch(() => this.kept.delete(name));
    if (this.kept.size > MAX_KEPT) this.kept.delete(this.kept.keys().next().value ?? "");
    return context;
  }

  private async create(workspaceId: string, host: string, nowMs: number): Promise<SecureContext> {
    this.keys ??= newKeys();
    const { pem, publicKey } = await this.keys;
    const authority = await this.authorities.signing(workspaceId);
    const certificate = await X509CertificateGenerator.create({
      serialNumber: `4${randomBytes(15).toString("hex")}`,
      // Long names fit into the list of names alone.
      subject: `CN=${createHash("sha256").update(host).digest("hex").slice(0, 12)}`,
      issuer: authority.certificate.subject,
      notBefore: new Date(nowMs - BEFORE_MS),
      notAfter: new Date(nowMs + VALID_MS),
      signingAlgorithm: SIGNATURE,
      signingKey: authority.privateKey,
      publicKey,
      extensions: [
        new BasicConstraintsExtension(false, undefined, true),
        new KeyUsagesExtension(KeyUsageFlags.digitalSignature, true),
        new ExtendedKeyUsageExtension([ExtendedKeyUsage.serverAuth]),
        new SubjectAlternativeNameExtension([{ type: isIP(host) === 0 ? "dns" : "ip", value: host }]),
        await AuthorityKeyIdentifierExtension.create(authority.publicKey),
      ],
    });
    return createSecureContext({ key: pem, cert: certificate.toString("pem"), minVersion: "TLSv1.2" });
  }
}

async function newKeys(): Promise<LeafKeys> {
  const { subtle } = webcrypto;
  const pair = (await subtle.generateKey(CURVE, true, ["sign", "verify"])) as webcrypto.CryptoKeyPair;
  const bytes = Buffer.from(await subtle.exportKey("pkcs8", pair.privateKey));
  const pem = `-----BEGIN PRIVATE KEY-----\n${bytes.toString("base64")}\n-----END PRIVATE KEY-----\n`;
  return { pem, publicKey: pair.publicKey };
}
