/**
 * What a proxy has to know again when the browser has come back, sealed to the proxies themselves: they keep nothing in
 * between, and any of them with the same keys goes on. The key is derived from a sealing key's private half, so nobody else
 * can make such a text either: a server could otherwise put in a verifier and a token endpoint of its own.
 */
import { hkdfSync } from "node:crypto";
import { CompactEncrypt, compactDecrypt, errors } from "jose";
import { MAX_SEALED_CHARS } from "../../../kit/vault/sealed-content.ts";
import type { SealingKeyPair, SealingKeys } from "../../sealing-key.ts";
import { StateRefused } from "./failure.ts";

export interface ConnectState {
  readonly workspaceId: string;
  readonly vaultId: string;
  readonly credentialId: string;
  readonly principal: string;
  /** By the wall clock. */
  readonly expiresAtMs: number;
  readonly serverUrl: string;
  readonly issuer: string;
  /** The authorization server says that it names itself in its answers (RFC 9207). */
  readonly namesIssuer: boolean;
  readonly tokenEndpoint: string;
  readonly clientId: string;
  readonly clientAuth: string;
  readonly clientSecret: string;
  readonly scope: string;
  readonly resource: string;
  readonly redirectUri: string;
  /** Of PKCE. */
  readonly verifier: string;
  /** The `state` that must come back. */
  readonly state: string;
}

const FORM = "tendon-connect-state-1";
const ALGORITHM = { alg: "dir", enc: "A256GCM" } as const;

export class ConnectStates {
  private readonly keys: SealingKeys;

  constructor(keys: SealingKeys) {
    this.keys = keys;
  }

  /** Throws a StateRefused for one that is too large. */
  async seal(state: ConnectState): Promise<string> {
    const [pair] = this.keys;
    const sealed = await new CompactEncrypt(new TextEncoder().encode(JSON.stringify(state)))
      .setProtectedHeader({ ...ALGORITHM, kid: pair.keyId, typ: FORM })
      .encrypt(keyOf(pair));
    if (sealed.length <= MAX_SEALED_CHARS) return sealed;
    throw new StateRefused("unreadable", "what has to be kept of this connect is too long");
  }

  /** Throws a StateRefused for what no proxy with these keys has sealed. Whether it still holds is not looked at. */
  async open(sealed: string): Promise<ConnectState> {
    try {
      const { plaintext, protectedHeader } = await compactDecrypt(
        sealed,
        ({ kid }) => keyOf(this.pairOf(kid)),
        { keyManagementAlgorithms: [ALGORITHM.alg], contentEncryptionAlgorithms: [ALGORITHM.enc] },
      );
      if (protectedHeader.typ === FORM)
        return JSON.parse(new TextDecoder().decode(plaintext)) as ConnectState;
    } catch (error) {
      const known = error instanceof StateRefused || error instanceof errors.JOSEError;
      // What a library says of bytes that it could not read might repeat some of them.
      if (!known && !(error instanceof TypeError)) throw new Error("opening the state of a connect failed");
    }
    throw new StateRefused(
      "unreadable",
      "this is no state that a proxy here has given; begin another connect",
    );
  }

  private pairOf(kid: string | undefined): SealingKeyPair {
    const found = this.keys.find(({ keyId }) => keyId === kid);
    if (found !== undefined) return found;
    throw new StateRefused("unreadable", "it is sealed to a key that this proxy does not have");
  }
}

function keyOf({ privateJwk }: SealingKeyPair): Uint8Array {
  const secret = Buffer.from(privateJwk.d ?? "", "base64url");
  return new Uint8Array(hkdfSync("sha256", secret, "", FORM, 32));
}
