/**
 * Opens sealed credentials and seals them anew. What counts is what is sealed: of what the server says around it only so much
 * is believed as agrees with the inside (S1).
 */
import { createHash } from "node:crypto";
import { create, fromJsonString } from "@bufbuild/protobuf";
import { compactDecrypt, errors, importJWK } from "jose";
import { type Clock, systemClock } from "../../kit/clock.ts";
import {
  CONTENT_ENCRYPTION,
  readSealed,
  SEALED_VERSION,
  SEALING_ALGORITHM,
  SealError,
  sealContent,
} from "../../kit/vault/sealed-content.ts";
import {
  type CredentialUse,
  type PlainSecret,
  PlainSecretSchema,
  type SealedContent,
  SealedContentSchema,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { SealingKeyPair, SealingKeys } from "../sealing-key.ts";
import { CredentialRefusal } from "./refusal.ts";

/** Whose it is, as the server says. */
export interface CredentialNames {
  readonly workspaceId: string;
  readonly vaultId: string;
  readonly credentialId: string;
}

export interface Opened extends CredentialNames {
  readonly use: CredentialUse;
  readonly secret: PlainSecret;
}

/** How long what was opened is kept: a brain's calls come one after the other, and opening costs more than the rest of one. */
const KEPT_MS = 30_000;
const MAX_KEPT = 1_000;

interface Kept {
  readonly content: SealedContent;
  readonly untilMs: number;
}

type PrivateKey = Awaited<ReturnType<typeof importJWK>>;

export class Opener {
  private readonly keys: SealingKeys;
  private sealingKey: SealingKeyPair;
  private readonly imported = new Map<string, Promise<PrivateKey>>();
  private readonly clock: Clock;
  /** By the hash of the sealed text, which the server gives anew for each use: whoever may not use it gets none. */
  private readonly kept = new Map<string, Kept>();
  private readonly stopForgetting: () => void;

  constructor(keys: SealingKeys, clock: Clock = systemClock) {
    this.keys = keys;
    this.sealingKey = keys[0];
    this.clock = clock;
    this.stopForgetting = clock.every(KEPT_MS, () => this.forgetOld());
  }

  stop(): void {
    this.stopForgetting();
    this.kept.clear();
  }

  /** Throws a CredentialRefusal. */
  async open(sealed: string, names: CredentialNames): Promise<Opened> {
    const content = await this.content(sealed);
    const { workspaceId, vaultId, credentialId, use, secret } = content;
    const isSame =
      workspaceId === names.workspaceId && vaultId === names.vaultId && credentialId === names.credentialId;
    if (!isSame) {
      throw new CredentialRefusal(
        "SEAL_OF_ANOTHER",
        "the sealed text belongs to another credential than it is kept as",
      );
    }
    if (content.version !== SEALED_VERSION || use?.kind.case === undefined || secret === undefined) {
      throw new CredentialRefusal("SEAL_BROKEN", "the sealed text does not hold what one must hold");
    }
    return { ...names, use, secret };
  }

  /** Of a webhook endpoint, which no other method opens. Throws a CredentialRefusal. */
  async openSigningSecret(
    sealed: string,
    { workspaceId, endpointId }: { readonly workspaceId: string; readonly endpointId: string },
  ): Promise<string> {
    const content = await this.content(sealed);
    const { version, use, secret } = content;
    if (
      content.workspaceId !== workspaceId ||
      content.webhookEndpointId !== endpointId ||
      endpointId === ""
    ) {
      throw new CredentialRefusal(
        "SEAL_OF_ANOTHER",
        "the sealed text belongs to another endpoint, or to none",
      );
    }
    if (version !== SEALED_VERSION || use !== undefined || secret === undefined || secret.value === "")
      throw new CredentialRefusal("SEAL_BROKEN", "the sealed text does not hold what one must hold");
    return secret.value;
  }

  /** To the newest key, as `seal`. */
  async sealSigningSecret(
    { workspaceId, endpointId }: { readonly workspaceId: string; readonly endpointId: string },
    value: string,
  ): Promise<string> {
    const whose = { version: SEALED_VERSION, workspaceId, webhookEndpointId: endpointId };
    return sealContent(this.sealingKey, create(SealedContentSchema, { ...whose, secret: { value } }));
  }

  /** The key to seal to from now on; one that is not here leaves it at the newest. */
  sealTo(keyId: string): void {
    this.sealingKey = this.keys.find((key) => key.keyId === keyId) ?? this.keys[0];
  }

  /** Sealed to the key that all proxies have, as far as that is known. */
  async seal({ workspaceId, vaultId, credentialId, use, secret }: Opened): Promise<string> {
    const names = { workspaceId, vaultId, credentialId };
    const content = create(SealedContentSchema, { version: SEALED_VERSION, ...names, use, secret });
    try {
      return await sealContent(this.sealingKey, content);
    } catch (error) {
      if (error instanceof SealError) throw new CredentialRefusal("INVALID_FIELD", error.message);
      throw error;
    }
  }

  private async content(sealed: string): Promise<SealedContent> {
    const hash = createHash("sha256").update(sealed).digest("base64");
    const kept = this.kept.get(hash);
    if (kept !== undefined && kept.untilMs > this.clock.monotonicMs()) return kept.content;
    const content = await this.decrypt(sealed);
    const oldest = this.kept.size >= MAX_KEPT ? this.kept.keys().next().value : undefined;
    if (oldest !== undefined) this.kept.delete(oldest);
    this.kept.set(hash, { content, untilMs: this.clock.monotonicMs() + KEPT_MS });
    return content;
  }

  private forgetOld(): void {
    for (const [hash, { untilMs }] of this.kept) {
      if (untilMs <= this.clock.monotonicMs()) this.kept.delete(hash);
    }
  }

  private async decrypt(sealed: string): Promise<SealedContent> {
    try {
      const { keyId } = readSealed(sealed);
      const pair = this.keys.find((key) => key.keyId === keyId);
      if (pair === undefined) {
        throw new CredentialRefusal("KEY_UNKNOWN", `this proxy does not have the sealing key ${keyId}`);
      }
      const { plaintext } = await compactDecrypt(sealed, await this.privateKey(pair), {
        keyManagementAlgorithms: [SEALING_ALGORITHM],
        contentEncryptionAlgorithms: [CONTENT_ENCRYPTION],
      });
      return parse(new TextDecoder("utf-8", { fatal: true }).decode(plaintext));
    } catch (error) {
      if (error instanceof CredentialRefusal) throw error;
      // What a library says of bytes that it could not read might repeat some of them.
      const known =
        error instanceof SealError || error instanceof errors.JOSEError || error instanceof TypeError;
      if (known) throw new CredentialRefusal("SEAL_BROKEN", "the sealed text cannot be opened");
      throw new Error("opening a sealed text failed");
    }
  }

  private privateKey(pair: SealingKeyPair): Promise<PrivateKey> {
    const known = this.imported.get(pair.keyId) ?? importJWK(pair.privateJwk, SEALING_ALGORITHM);
    this.imported.set(pair.keyId, known);
    return known;
  }
}

function parse(text: string): SealedContent {
  try {
    return fromJsonString(SealedContentSchema, text, { ignoreUnknownFields: true });
  } catch {
    throw new CredentialRefusal("SEAL_BROKEN", "the sealed text does not hold what one must hold");
  }
}

/** The secret with those fields of `part` that are set. */
export function mergedSecret(secret: PlainSecret, part: PlainSecret): PlainSecret {
  const expiresAt = part.expiresAt ?? secret.expiresAt;
  return create(PlainSecretSchema, {
    value: part.value || secret.value,
    refreshToken: part.refreshToken || secret.refreshToken,
    clientSecret: part.clientSecret || secret.clientSecret,
    userName: part.userName || secret.userName,
    ...(expiresAt && { expiresAt }),
  });
}
