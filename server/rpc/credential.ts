/** Reads the credential that a call shows. */
import { TendonError } from "../../kit/errors.ts";
import type { RequestHeaders } from "../../kit/rpc/context.ts";
import { ENVIRONMENT_KEY_PREFIX, WORK_TOKEN_PREFIX } from "../ports/principal.ts";

export type Credential =
  | { readonly kind: "none" }
  | { readonly kind: "api_key"; readonly secret: string }
  /** Signed by a hand agent; `subject` is what it claims. */
  | { readonly kind: "hand_agent"; readonly token: string; readonly subject: string }
  | { readonly kind: "session"; readonly token: string }
  /** A worker's. */
  | { readonly kind: "environment_key"; readonly secret: string }
  /** Of an item of work. */
  | { readonly kind: "work_token"; readonly secret: string };

const MAX_CREDENTIAL_CHARS = 8 * 1024;

/** Nothing is checked here but the form. Throws UNAUTHENTICATED for a header that cannot be one. */
export function credentialOf(headers: RequestHeaders): Credential {
  const text = bearerOf(headers.get("authorization")) ?? headers.get("x-api-key")?.trim();
  if (text === undefined || text === "") return { kind: "none" };
  if (text.length > MAX_CREDENTIAL_CHARS)
    throw new TendonError("UNAUTHENTICATED", "the credential is too long");
  if (text.startsWith(ENVIRONMENT_KEY_PREFIX)) return { kind: "environment_key", secret: text };
  if (text.startsWith(WORK_TOKEN_PREFIX)) return { kind: "work_token", secret: text };
  const subject = subjectOf(text);
  if (subject === undefined) return { kind: "api_key", secret: text };
  if (subject.startsWith("hagt_")) return { kind: "hand_agent", token: text, subject };
  return { kind: "session", token: text };
}

function bearerOf(header: string | undefined): string | undefined {
  if (header === undefined || header.trim() === "") return undefined;
  const [, token] = /^\s*bearer\s+(\S+)\s*$/i.exec(header) ?? [];
  if (token === undefined) {
    throw new TendonError("UNAUTHENTICATED", "the header must read `Authorization: Bearer <key>`");
  }
  return token;
}

/** The subject that a JWT claims; undefined for what is no JWT. */
function subjectOf(text: string): string | undefined {
  const parts = text.split(".");
  if (parts.length !== 3) return undefined;
  try {
    const payload: unknown = JSON.parse(Buffer.from(parts[1]!, "base64url").toString());
    const sub = (payload as { sub?: unknown } | null)?.sub;
    return typeof sub === "string" ? sub : "";
  } catch {
    return undefined;
  }
}
