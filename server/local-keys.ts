/**
 * The keys that this machine's programs find in the data directory: `admin.key` for the command line, `harness.key` and
 * `proxy.key` for the harness and the proxy that are started beside the server, `peer.key` for this server among replicas. Files have mode 0600 and hold the key alone;
 * the database has the hashes (S6).
 */
import { rename } from "node:fs/promises";
import { join } from "node:path";
import { newId } from "../kit/ids.ts";
import type { Logger } from "../kit/log.ts";
import { createPrivateFile, readPrivateFile } from "../kit/private-file.ts";
import { hashOf, newApiKey } from "./admin/new-key.ts";
import type { ApiKeyStore, KeyIdentity, KeyRole } from "./store/api-keys.ts";

export interface LocalKeysDeps {
  readonly dataDir: string;
  readonly apiKeys: Pick<ApiKeyStore, "ensure" | "findByHash" | "hasLive">;
  readonly log: Logger;
  /** Who makes the keys, for the audit log. */
  readonly actor: string;
  /** The operator's own admin key. */
  readonly adminKey: string | undefined;
  /** There are other replicas to call: this one has a key for that, `peer.key`, which only it knows. */
  readonly withPeerKey: boolean;
  /** Makes a new admin key even though there are some: the file was lost. */
  readonly replaceAdminKey: boolean;
}

/** Gives what this replica shows the others. */
export async function ensureLocalKeys(deps: LocalKeysDeps): Promise<{ peerKey: string | undefined }> {
  await ensureRoleFile(deps, "harness");
  await ensureRoleFile(deps, "proxy");
  const peerKey = deps.withPeerKey ? await ensureRoleFile(deps, "peer") : undefined;
  if (deps.adminKey !== undefined) await useOperatorsKey(deps, deps.adminKey);
  await ensureAdminFile(deps);
  return { peerKey };
}

async function ensureRoleFile(deps: LocalKeysDeps, role: "harness" | "proxy" | "peer"): Promise<string> {
  const path = join(deps.dataDir, `${role}.key`);
  const secret = (await readKey(path)) ?? (await makeKey(path, role));
  const identity = await register(deps, secret, role, `local ${role}`);
  if (identity.revoked) {
    deps.log.warn(`the key in ${path} was revoked; remove the file and start again for a new one`);
  }
  return secret;
}

async function useOperatorsKey(deps: LocalKeysDeps, secret: string): Promise<void> {
  const identity = await register(deps, secret, "admin", "TENDON_ADMIN_KEY");
  if (identity.revoked || identity.role !== "admin") {
    throw new Error("TENDON_ADMIN_KEY is a key that was revoked or has another role; choose another one");
  }
}

async function ensureAdminFile(deps: LocalKeysDeps): Promise<void> {
  const { apiKeys, dataDir, log, replaceAdminKey } = deps;
  const path = join(dataDir, "admin.key");
  const existing = await readKey(path);
  if (replaceAdminKey) {
    if (existing !== undefined) await rename(path, `${path}.old`);
    await register(deps, await makeKey(path, "admin"), "admin", "local admin");
    log.info(`a new admin key is in ${path}`);
    return;
  }
  const hasLive = await apiKeys.hasLive("admin");
  if (existing === undefined) {
    if (!hasLive) await register(deps, await makeKey(path, "admin"), "admin", "local admin");
    else if (deps.adminKey === undefined) {
      log.warn(`there are admin keys, but none in ${path}: start once with --new-admin-key to make one`);
    }
    return;
  }
  // The file may be older than the database: the first one to come gets its key in.
  const known = hasLive
    ? await apiKeys.findByHash(hashOf(existing))
    : await register(deps, existing, "admin", "local admin");
  if (known === undefined || known.revoked) {
    log.warn(
      `the key in ${path} is no admin key of this database: start once with --new-admin-key to make one`,
    );
  }
}

/** The file comes first: a kill in between leaves a key that the next start registers. */
async function makeKey(path: string, role: KeyRole): Promise<string> {
  await createPrivateFile(path, `${newApiKey(role).secret}\n`);
  const secret = await readKey(path);
  if (secret === undefined) throw new Error(`${path} vanished right after it was made`);
  return secret;
}

async function readKey(path: string): Promise<string | undefined> {
  const text = (await readPrivateFile(path))?.trim();
  if (text !== undefined && !/^[\x21-\x7e]{16,512}$/.test(text)) {
    throw new Error(`${path} holds no key; remove it and start again`);
  }
  return text;
}

function register(deps: LocalKeysDeps, secret: string, role: KeyRole, name: string): Promise<KeyIdentity> {
  const id = newId("apiKey");
  const hint = name === "TENDON_ADMIN_KEY" ? "" : secret.slice(0, `tk_${role}_`.length + 4);
  const key = {
    id,
    name,
    role,
    workspaceId: undefined,
    hint,
    secretHash: hashOf(secret),
    expiresAtMs: undefined,
  };
  return deps.apiKeys.ensure(key, {
    actor: deps.actor,
    action: "api_key.create",
    subject: id,
    detail: { name, role },
  });
}
