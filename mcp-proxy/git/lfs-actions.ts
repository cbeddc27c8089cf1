/**
 * Where LFS objects are, as sandboxes know it: what a host's answer says of a transfer (URL, headers, often a token of its own)
 * is sealed by a key that proxies alone have, and comes back when the transfer is made. So nothing has to be remembered, any
 * proxy of the installation can go on, and no token of the host's is in a sandbox.
 */
import { hkdfSync } from "node:crypto";
import { CompactEncrypt, compactDecrypt } from "jose";
import type { SealingKeys } from "../sealing-key.ts";

export interface LfsAction {
  readonly sessionId: string;
  readonly repositoryUrl: string;
  readonly method: "GET" | "PUT" | "POST";
  /** Of any host; https. */
  readonly url: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly expiresAtMs: number;
}

export interface LfsActions {
  seal(action: LfsAction): Promise<string>;
  /** Undefined for what was not sealed by a proxy of this installation. */
  open(text: string): Promise<LfsAction | undefined>;
}

const HEADER = { alg: "dir", enc: "A256GCM" } as const;

export function createLfsActions(keys: SealingKeys): LfsActions {
  const secrets = keys.map(({ privateJwk }) => {
    const key = Buffer.from(String(privateJwk.d), "base64url");
    return new Uint8Array(hkdfSync("sha256", key, "", "tendon lfs actions", 32));
  });
  return {
    async seal(action) {
      const text = new TextEncoder().encode(JSON.stringify(action));
      return new CompactEncrypt(text).setProtectedHeader(HEADER).encrypt(secrets[0]!);
    },
    async open(text) {
      for (const secret of secrets) {
        try {
          const { plaintext } = await compactDecrypt(text, secret, {
            keyManagementAlgorithms: [HEADER.alg],
            contentEncryptionAlgorithms: [HEADER.enc],
          });
          return JSON.parse(new TextDecoder().decode(plaintext)) as LfsAction;
        } catch {
          // another key, or none
        }
      }
      return undefined;
    },
  };
}
