/** Moves signing secrets to the proxies' newest key, as vaults do with credentials. */
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import { Rounds } from "../../kit/rounds.ts";
import { readSealed } from "../../kit/vault/sealed-content.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { WebhookEndpointStore, WebhookSecretRow } from "../store/webhooks.ts";

export interface SecretResealingDeps {
  readonly webhookEndpoints: Pick<WebhookEndpointStore, "secretsSealedToOthers" | "storeResealed">;
  readonly proxies: Pick<ProxyDirectory, "ask" | "currentSealingKey" | "sealingKeys">;
  readonly clock: Clock;
  readonly log: Logger;
}

const EVERY_MS = 2_000;
const BATCH = 20;
const RESEAL_WITHIN_MS = 10_000;
/** Those that no proxy can open are left alone until this server starts again. */
const MAX_REFUSED = 1_000;

export function createSecretResealing(deps: SecretResealingDeps): Service {
  const refused = new Set<string>();
  return new Rounds({
    name: "re-sealing of signing secrets",
    everyMs: EVERY_MS,
    round: () => resealSome(deps, refused),
    failed: "signing secrets could not be sealed to the newest key",
    clock: deps.clock,
    log: deps.log,
  });
}

async function resealSome(deps: SecretResealingDeps, refused: Set<string>): Promise<void> {
  const { proxies, webhookEndpoints } = deps;
  if (proxies.sealingKeys().length === 0) return;
  const key = await proxies.currentSealingKey();
  if (key === undefined) return;
  const found = await webhookEndpoints.secretsSealedToOthers(key.keyId, BATCH + refused.size);
  for (const secret of found.filter((one) => !refused.has(nameOf(one))).slice(0, BATCH))
    if (!(await resealOne(deps, secret)) && refused.size < MAX_REFUSED) refused.add(nameOf(secret));
}

/** False when the proxy refuses. */
async function resealOne(
  { proxies, webhookEndpoints, log }: SecretResealingDeps,
  secret: WebhookSecretRow,
): Promise<boolean> {
  const { endpointId, workspaceId, sealed } = secret;
  const nothing = { credentialId: "", vaultId: "", use: "", secret: "" };
  const value = { ...nothing, workspaceId, sealed, webhookEndpointId: endpointId };
  const answer = await proxies.ask({ case: "reseal", value }, { timeoutMs: RESEAL_WITHIN_MS });
  if (answer.reason !== "") {
    log.warn({ endpointId, reason: answer.reason }, "a proxy refused to seal a signing secret anew");
    return false;
  }
  try {
    const { keyId } = readSealed(answer.resealed);
    await webhookEndpoints.storeResealed(secret, { text: answer.resealed, keyId });
    return true;
  } catch (error) {
    log.warn({ endpointId, error: messageOf(error) }, "a signing secret that was sealed anew was not stored");
    return false;
  }
}

function nameOf({ endpointId, number }: WebhookSecretRow): string {
  return `${endpointId} ${number}`;
}
