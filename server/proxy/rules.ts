/** What a proxy may say of itself. */
import { createHash } from "node:crypto";
import { invalidField, TendonError } from "../../kit/errors.ts";
import type { ProxyHello } from "../../proto/gen/tendon/v1/proxy_service_pb.js";

export const PROTOCOL_VERSION = 1;

/** Members of a JWK that are secret, for every kind of key (RFC 7518). */
const SECRET_MEMBERS = ["d", "p", "q", "dp", "dq", "qi", "oth", "k"];

/** Members that make up a key's thumbprint, by kind of key (RFC 7638). */
const THUMBPRINT_MEMBERS: Readonly<Record<string, readonly string[]>> = {
  OKP: ["crv", "kty", "x"],
  EC: ["crv", "kty", "x", "y"],
  RSA: ["e", "kty", "n"],
};

/** Throws PROTOCOL_VERSION_UNSUPPORTED, or INVALID_FIELD for the first thing that is wrong. */
export function checkHello(hello: ProxyHello): void {
  if (hello.protocolVersion !== PROTOCOL_VERSION) {
    throw new TendonError(
      "PROTOCOL_VERSION_UNSUPPORTED",
      `this server speaks version ${PROTOCOL_VERSION} of the proxy protocol, the proxy version ${hello.protocolVersion}`,
      { supported: String(PROTOCOL_VERSION) },
    );
  }
  const url = URL.canParse(hello.url) ? new URL(hello.url) : undefined;
  if (url === undefined || !["http:", "https:"].includes(url.protocol)) {
    throw invalidField("hello.url", "must be http://… or https://…");
  }
  for (const [index, { keyId, publicJwk }] of hello.sealingKeys.entries()) {
    checkSealingKey(`hello.sealing_keys[${index}]`, keyId, publicJwk);
  }
}

/** S1: a secret half that was sent by mistake must not end up in the database. */
function checkSealingKey(path: string, keyId: string, text: string): void {
  const jwk = parseJwk(`${path}.public_jwk`, text);
  if (SECRET_MEMBERS.some((name) => name in jwk)) {
    throw invalidField(`${path}.public_jwk`, "must hold public members only");
  }
  const members = THUMBPRINT_MEMBERS[String(jwk.kty)];
  if (members === undefined)
    throw invalidField(`${path}.public_jwk`, "is of a kind that nothing can be sealed to");
  const essence = JSON.stringify(Object.fromEntries(members.map((name) => [name, jwk[name]])));
  const thumbprint = createHash("sha256").update(essence).digest("base64url");
  if (thumbprint !== keyId) throw invalidField(`${path}.key_id`, "is not the thumbprint of the key");
}

function parseJwk(path: string, text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) {
      return value as Record<string, unknown>;
    }
  } catch {
    // Said below; the text itself is not repeated.
  }
  throw invalidField(path, "must be a JSON object");
}
