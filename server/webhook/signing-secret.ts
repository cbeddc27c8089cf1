/** Secrets that deliveries are signed with: made here, shown once, and sealed so that proxies alone can use them (S1). */
import { randomBytes } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { TendonError } from "../../kit/errors.ts";
import { SEALED_VERSION, sealContent } from "../../kit/vault/sealed-content.ts";
import { SealedContentSchema } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { SealedText } from "../store/credentials.ts";

/** As Standard Webhooks has it. */
export const SECRET_PREFIX = "whsec_";
const SECRET_BYTES = 32;

export function newSigningSecret(): string {
  return SECRET_PREFIX + randomBytes(SECRET_BYTES).toString("base64");
}

/** NOT_CONFIGURED while no proxy has published a key. */
export async function sealSigningSecret(
  proxies: Pick<ProxyDirectory, "currentSealingKey">,
  whose: { readonly workspaceId: string; readonly endpointId: string },
  secret: string,
): Promise<SealedText> {
  const key = await proxies.currentSealingKey();
  if (key === undefined) {
    throw new TendonError(
      "NOT_CONFIGURED",
      "webhooks are signed and sent by a proxy, and none has published a sealing key yet; start one: tendon mcp-proxy",
      { part: "proxy" },
    );
  }
  const content = create(SealedContentSchema, {
    version: SEALED_VERSION,
    workspaceId: whose.workspaceId,
    webhookEndpointId: whose.endpointId,
    secret: { value: secret },
  });
  return { text: await sealContent(key, content), keyId: key.keyId };
}
