/**
 * Who this agent is: a key that never leaves its data directory, and the identity that a server gave to its public half.
 * The agent signs short-lived tokens itself, so nothing that lives long crosses the network.
 */
import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Clock } from "../kit/clock.ts";
import { isTendonError, messageOf } from "../kit/errors.ts";
import { isId } from "../kit/ids.ts";
import { StartupError } from "../kit/program.ts";
import type { Client } from "../kit/rpc/client.ts";
import { loadOrCreateKeyFile, type SigningKey } from "../kit/sign/key-file.ts";
import { signToken } from "../kit/sign/token.ts";
import type { HandAgentService } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";

export interface Identity {
  readonly handAgentId: string;
  readonly workspaceId: string;
  readonly pool: string;
  readonly installationId: string;
  /** Where it was given; for people. */
  readonly serverUrl: string;
}

/** The agent's program ends with this code once it was revoked, so that a service manager can leave it alone. */
export const EXIT_REVOKED = 3;
/** Other refusals of the server that only an operator can mend. */
export const EXIT_REFUSED = 4;

const AUDIENCE = "tendon";
const TOKEN_TTL_MS = 4 * 60_000;
const ENROLL_WITHIN_MS = 10_000;

export function loadKey(dataDir: string): Promise<SigningKey> {
  return loadOrCreateKeyFile(join(dataDir, "agent.key"));
}

/** The identity of before, or undefined when the agent has not been enrolled. */
export async function loadIdentity(dataDir: string): Promise<Identity | undefined> {
  const path = join(dataDir, "identity.json");
  let text: string;
  try {
    text = await readFile(path, "utf8");
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === "ENOENT") return undefined;
    throw new StartupError(`cannot read ${path}: ${messageOf(error)}`);
  }
  try {
    const identity = JSON.parse(text) as Identity;
    if (isId("handAgent", identity.handAgentId) && typeof identity.installationId === "string")
      return identity;
  } catch {
    // said below
  }
  throw new StartupError(`${path} is not an identity; remove it and start with a new join token`);
}

export interface EnrollOptions {
  client: Pick<Client<typeof HandAgentService>, "enroll">;
  key: SigningKey;
  joinToken: string;
  name: string;
  labels: Readonly<Record<string, string>>;
  dataDir: string;
  serverUrl: string;
}

/**
 * Exchanges the join token for an identity and keeps that. May be repeated: the same key gets the same identity. Throws
 * StartupError when the server refuses for good; other failures, such as a server that is not there, are passed on.
 */
export async function enroll(options: EnrollOptions): Promise<Identity> {
  const { client, key, joinToken, name, labels, dataDir, serverUrl } = options;
  const publicKey = Buffer.from(key.publicKey.x, "base64url");
  try {
    const { handAgentId, workspaceId, pool, installationId } = await client.enroll(
      { joinToken, publicKey, name, labels },
      { deadlineMs: ENROLL_WITHIN_MS },
    );
    const identity = { handAgentId, workspaceId, pool, installationId, serverUrl };
    await saveIdentity(dataDir, identity);
    return identity;
  } catch (error) {
    throw refusedForGood(error, dataDir) ?? error;
  }
}

async function saveIdentity(dataDir: string, identity: Identity): Promise<void> {
  const path = join(dataDir, "identity.json");
  await writeFile(`${path}.new`, `${JSON.stringify(identity, undefined, 2)}\n`, { mode: 0o600, flush: true });
  await rename(`${path}.new`, path);
}

function refusedForGood(error: unknown, dataDir: string): StartupError | undefined {
  if (isTendonError(error, "JOIN_TOKEN_INVALID")) {
    const said = messageOf(error);
    const command = "tendon hand-agent join-token";
    const help = said.includes(command) ? "" : `; make a new one with "${command}"`;
    return new StartupError(`the server refuses the join token (${said})${help}`, EXIT_REFUSED);
  }
  if (isTendonError(error, "HAND_AGENT_REVOKED")) return new StartupError(revokedText(dataDir), EXIT_REVOKED);
  if (isTendonError(error, "INVALID_FIELD"))
    return new StartupError(`the server refuses: ${messageOf(error)}`, EXIT_REFUSED);
  return undefined;
}

export function revokedText(dataDir: string): string {
  return `this hand agent was revoked; --purge lists the hands' files that are left here, and with --yes removes them; to join again, remove ${dataDir} after that and start with a new join token`;
}

/** The bearer token of the agent's calls, signed anew before it runs out. */
export class AgentToken {
  private readonly key: SigningKey;
  private readonly handAgentId: string;
  private readonly clock: Clock;
  private current = "";

  constructor(key: SigningKey, handAgentId: string, clock: Clock) {
    this.key = key;
    this.handAgentId = handAgentId;
    this.clock = clock;
  }

  /** The newest token; `renew` must have been called within the last minutes. */
  value(): string {
    return this.current;
  }

  async renew(): Promise<void> {
    const claims = { audience: AUDIENCE, subject: this.handAgentId };
    this.current = await signToken(this.key, claims, TOKEN_TTL_MS, this.clock);
  }
}
