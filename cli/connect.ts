/** Finds the server and the caller's key, and calls the contract with them. */
import type { DescService } from "@bufbuild/protobuf";
import { type Connection, dial } from "../kit/dial/dial.ts";
import { StartupError } from "../kit/program.ts";
import type { Client } from "../kit/rpc/client.ts";
import { AdminService } from "../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../proto/gen/tendon/v1/agent_service_pb.js";
import { DeploymentService } from "../proto/gen/tendon/v1/deployment_service_pb.js";
import { EnvironmentService } from "../proto/gen/tendon/v1/environment_service_pb.js";
import { FileService } from "../proto/gen/tendon/v1/file_service_pb.js";
import { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import { MemoryService } from "../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { SkillService } from "../proto/gen/tendon/v1/skill_service_pb.js";
import { ThreadService } from "../proto/gen/tendon/v1/thread_service_pb.js";
import { VaultService } from "../proto/gen/tendon/v1/vault_service_pb.js";
import { WebhookService } from "../proto/gen/tendon/v1/webhook_service_pb.js";
import type { CliConfig } from "./config.ts";
import { type DataDir, dataDirOf, isAlive, readAdminKey, readRunRecord } from "./data-dir.ts";

export const DEFAULT_URL = "http://127.0.0.1:7400";

/** Options of every command. */
export interface GlobalOptions {
  readonly url?: string;
  readonly dataDir?: string;
  readonly caFile?: string;
  readonly json?: boolean;
  /** False with `--no-color`. */
  readonly color?: boolean;
}

/** Where a command goes and as whom. */
export interface Target {
  readonly url: string;
  /** Who named the server; "data directory" is a start that runs there, "default" nobody. */
  readonly urlOrigin: "--url" | "TENDON_URL" | "data directory" | "default";
  readonly key: string | undefined;
  /** Where the key is from, or why there is none; for people. */
  readonly keyOrigin: string;
  readonly dataDir: DataDir;
  readonly caFile: string | undefined;
  readonly proxy: { readonly httpsProxy: string | undefined; readonly noProxy: string | undefined };
}

export interface Api {
  readonly target: Target;
  readonly sessions: Client<typeof SessionService>;
  readonly memory: Client<typeof MemoryService>;
  readonly files: Client<typeof FileService>;
  readonly skills: Client<typeof SkillService>;
  readonly threads: Client<typeof ThreadService>;
  readonly hands: Client<typeof HandService>;
  readonly agents: Client<typeof AgentService>;
  readonly deployments: Client<typeof DeploymentService>;
  readonly environments: Client<typeof EnvironmentService>;
  readonly vaults: Client<typeof VaultService>;
  readonly webhooks: Client<typeof WebhookService>;
  readonly admin: Client<typeof AdminService>;
  close(): void;
}

export async function findTarget(options: GlobalOptions, config: CliConfig): Promise<Target> {
  const dataDir = dataDirOf(options.dataDir ?? config.TENDON_DATA_DIR);
  const { url, urlOrigin } = await findUrl(options, config, dataDir);
  const { key, origin } = await findKey(url, dataDir, config);
  return {
    url,
    urlOrigin,
    key,
    keyOrigin: origin,
    dataDir,
    caFile: options.caFile ?? config.TENDON_CA_FILE,
    proxy: { httpsProxy: config.HTTPS_PROXY, noProxy: config.NO_PROXY },
  };
}

async function findUrl(
  options: GlobalOptions,
  config: CliConfig,
  dataDir: DataDir,
): Promise<Pick<Target, "url" | "urlOrigin">> {
  if (options.url !== undefined) return { url: options.url, urlOrigin: "--url" };
  if (config.TENDON_URL !== undefined) return { url: config.TENDON_URL, urlOrigin: "TENDON_URL" };
  const started = await startedUrl(dataDir);
  if (started !== undefined) return { url: started, urlOrigin: "data directory" };
  return { url: DEFAULT_URL, urlOrigin: "default" };
}

async function startedUrl(dataDir: DataDir): Promise<string | undefined> {
  const record = await readRunRecord(dataDir);
  return record !== undefined && (await isAlive(record)) ? record.url : undefined;
}

async function findKey(
  url: string,
  dataDir: DataDir,
  config: CliConfig,
): Promise<{ key: string | undefined; origin: string }> {
  if (config.TENDON_API_KEY !== undefined) return { key: config.TENDON_API_KEY, origin: "TENDON_API_KEY" };
  // The key of the installation here is nobody else's business: it goes elsewhere only when its folder was named.
  if (!dataDir.isNamed && !isLoopback(url)) {
    return {
      key: undefined,
      origin: "TENDON_API_KEY is not set (the key of this machine's own installation is not sent elsewhere)",
    };
  }
  const key = await readAdminKey(dataDir);
  if (key !== undefined) return { key, origin: `${dataDir.path}/admin.key` };
  return { key: undefined, origin: `TENDON_API_KEY is not set and there is no ${dataDir.path}/admin.key` };
}

export function isLoopback(url: string): boolean {
  const host = URL.canParse(url) ? new URL(url).hostname : "";
  return host === "localhost" || host === "[::1]" || /^127\.\d+\.\d+\.\d+$/.test(host);
}

/** Throws a StartupError when URL, file or proxy cannot be used; the connection itself is made by the first call. */
export function connectTo(target: Target): Api {
  let connection: Connection;
  try {
    connection = dial({
      url: target.url,
      caFile: target.caFile,
      token: () => target.key,
      proxy: target.proxy,
    });
  } catch (error) {
    throw new StartupError((error as Error).message, 2);
  }
  const client = <S extends DescService>(service: S) => connection.client(service);
  return {
    target,
    sessions: client(SessionService),
    memory: client(MemoryService),
    files: client(FileService),
    skills: client(SkillService),
    threads: client(ThreadService),
    hands: client(HandService),
    agents: client(AgentService),
    deployments: client(DeploymentService),
    environments: client(EnvironmentService),
    vaults: client(VaultService),
    webhooks: client(WebhookService),
    admin: client(AdminService),
    close: () => connection.close(),
  };
}
