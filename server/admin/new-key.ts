/** Makes the secrets that this area hands out once; only their hashes are stored (S6). */
import { hashSecret, newSecret } from "../../kit/sign/secrets.ts";
import type { KeyRole } from "../store/api-keys.ts";

export interface NewSecret {
  readonly secret: string;
  readonly secretHash: Uint8Array;
  /** First characters, to recognise it by. */
  readonly hint: string;
}

const HINT_CHARS = 4;

export function newApiKey(role: KeyRole): NewSecret {
  return made(`tk_${role}_`);
}

export function newJoinToken(): NewSecret {
  return made("tj_");
}

function made(prefix: string): NewSecret {
  const secret = newSecret(prefix);
  return { secret, secretHash: hashOf(secret), hint: secret.slice(0, prefix.length + HINT_CHARS) };
}

export function hashOf(secret: string): Uint8Array {
  return Buffer.from(hashSecret(secret), "hex");
}
