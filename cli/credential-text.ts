/** A credential in words for people. */
import type { Credential, CredentialUse } from "../proto/gen/tendon/v1/vault_service_pb.js";
import { formatFields } from "./table.ts";
import { pairsText, timeText } from "./words.ts";

export function credentialText(credential: Credential): string {
  const [kind, place] = useWords(credential.use);
  return formatFields([
    ["id", credential.id],
    ["vault", credential.vaultId],
    ["name", credential.displayName],
    ["kind", kind],
    ["for", place],
    ["metadata", pairsText(credential.metadata)],
    ["sealed to", credential.sealingKeyId],
    ["created", timeText(credential.createdAt)],
    ["token ends", timeText(credential.expiresAt)],
    ["refreshed", timeText(credential.refreshedAt)],
    ["problem", credential.refreshProblem],
    ["archived", timeText(credential.archivedAt)],
  ]);
}

/** Kind and destination. */
export function useWords(use: CredentialUse | undefined): [string, string] {
  const kind = use?.kind;
  switch (kind?.case) {
    case "staticBearer":
      return ["bearer", kind.value.serverUrl];
    case "header":
      return [`header ${kind.value.headerName}`, kind.value.serverUrl];
    case "oauth":
      return ["oauth", kind.value.serverUrl];
    case "git":
      return ["git", kind.value.url];
    case "environmentVariable":
      return [`variable ${kind.value.name}`, kind.value.allowedHosts.join(" ")];
    default:
      return ["", ""];
  }
}
