/** Seals secrets, and knows to which key. */
import { create } from "@bufbuild/protobuf";
import { invalidField, TendonError } from "../../kit/errors.ts";
import {
  MAX_SEALED_CHARS,
  type PublicSealingKey,
  SEALED_VERSION,
  SealError,
  sealContent,
} from "../../kit/vault/sealed-content.ts";
import {
  type CredentialUse,
  type PlainSecret,
  SealedContentSchema,
} from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { SealedFor, SecretSealing } from "../ports/secret-sealing.ts";
import type { SealedText } from "../store/credentials.ts";
import type { ReplicaStore } from "../store/replicas.ts";

export interface SealingDeps {
  readonly proxies: Pick<ProxyDirectory, "currentSealingKey" | "sealingKeys">;
  readonly replicas: Pick<ReplicaStore, "sealingKeys">;
}

export class Sealing implements SecretSealing {
  private readonly deps: SealingDeps;

  constructor(deps: SealingDeps) {
    this.deps = deps;
  }

  /** The key that secrets are sealed to now. NOT_CONFIGURED while no proxy has published one. */
  async currentKey(): Promise<PublicSealingKey> {
    const found = await this.deps.proxies.currentSealingKey();
    if (found !== undefined) return found;
    throw new TendonError(
      "NOT_CONFIGURED",
      "no proxy has published a sealing key yet; start one: tendon mcp-proxy",
      {
        part: "proxy",
      },
    );
  }

  /** All keys that proxies ever published. */
  async knownKeys(): Promise<readonly PublicSealingKey[]> {
    const { published } = await this.deps.replicas.sealingKeys();
    return [...this.deps.proxies.sealingKeys().flat(), ...published];
  }

  /** As `currentKey`; INVALID_FIELD for a secret that is too large. */
  async seal(whose: SealedFor, use: CredentialUse, secret: PlainSecret): Promise<SealedText> {
    const key = await this.currentKey();
    const content = create(SealedContentSchema, { version: SEALED_VERSION, ...whose, use, secret });
    try {
      return { text: await sealContent(key, content), keyId: key.keyId };
    } catch (error) {
      if (!(error instanceof SealError)) throw error;
      throw invalidField(
        "secret.plain",
        `${error.message} (sealed it must have at most ${MAX_SEALED_CHARS} characters)`,
      );
    }
  }
}
