/** The parts of the agent that live as long as it does, through all its connections: built and tied to one another. */
import { join } from "node:path";
import type { Clock } from "../kit/clock.ts";
import type { Logger } from "../kit/log.ts";
import { NameResolver } from "../kit/network/name-resolver.ts";
import type { SigningKey } from "../kit/sign/key-file.ts";
import type { Tracing } from "../kit/trace.ts";
import type { DataDir } from "./data-dir.ts";
import type { DriverOffer } from "./driver-offers.ts";
import { type Driver, HandError } from "./drivers/driver.ts";
import { Executions } from "./executions.ts";
import { handReport } from "./hand-report.ts";
import type { ReadStoredFile } from "./hand-resources.ts";
import { Hands, type HandsOptions } from "./hands.ts";
import { Journal } from "./journal.ts";
import { MachineWatch } from "./machine-watch.ts";
import { Mounts } from "./mounts/mounts.ts";
import { mountsServer } from "./mounts/mounts-server.ts";
import { withMounts } from "./mounts/tool-with-mounts.ts";
import { OfflineWatch } from "./offline-watch.ts";
import { ReachList } from "./reach/reach-list.ts";
import { ReachedHosts } from "./reach/reached-hosts.ts";
import { CloneCache } from "./repositories/clone-cache.ts";
import { Repositories } from "./repositories/repositories.ts";
import { executeTool } from "./tools/execute-tool.ts";
import { Transfers } from "./transfers.ts";
import type { Tunnel } from "./tunnel/connection.ts";
import { SandboxTunnels } from "./tunnels/sandbox-tunnels.ts";

/** What an operator may set of them. */
export interface AgentPartsSettings extends Pick<HandsOptions, "capacity" | "provisionsAtOnce"> {
  /** Hosts of its network that it connects the proxy to, each with its port; see ReachList. Not set: none. */
  reach?: readonly string[] | undefined;
  clock: Clock;
  log: Logger;
  /** Not set: no spans are made. */
  tracing?: Tracing;
  /** The way of sandboxes to the proxy; the relays of the drivers have it too. */
  sandboxTunnels?: SandboxTunnels;
  /** Cut off from the server for so long, it ends what runs in its hands. Default: a day. */
  keepOfflineMs?: number;
  reaperPeriodMs?: number;
  /** Of clones that are kept for later hands; 0 keeps none. */
  repositoryCacheBytes?: number;
}

export const DEFAULT_REPOSITORY_CACHE_BYTES = 2 * 1024 ** 3;

/** What they need of the agent that they belong to. */
export interface AgentBelongings {
  readonly dataDir: DataDir;
  readonly key: SigningKey;
  readonly drivers: readonly Driver[];
  readonly offers: DriverOffer[];
  /** The installation that the agent belongs to now. */
  readonly installationId: () => string;
  /** As which it has joined. */
  readonly agentId: () => string;
  /** The connection that stands now. */
  readonly tunnel: () => Tunnel | undefined;
}

export interface AgentParts extends Pick<AgentBelongings, "dataDir" | "key" | "offers"> {
  readonly journal: Journal;
  readonly hands: Hands;
  readonly executions: Executions;
  readonly transfers: Transfers;
  readonly sandboxTunnels: SandboxTunnels;
  readonly reached: ReachedHosts;
  readonly offline: OfflineWatch;
  readonly machine: MachineWatch;
}

export function makeAgentParts(settings: AgentPartsSettings, belongings: AgentBelongings): AgentParts {
  const { clock, log, capacity, provisionsAtOnce, reaperPeriodMs, tracing, keepOfflineMs } = settings;
  const { dataDir, key, drivers, offers, installationId, agentId, tunnel } = belongings;
  const tell: Tunnel["send"] = (news) => tunnel()?.send(news);
  const journal = new Journal({ dataDir: dataDir.path, log, clock });
  const mounts = new Mounts({ dataDir: dataDir.path, server: mountsServer(tunnel), clock, log });
  const { sandboxTunnels = new SandboxTunnels(clock) } = settings;
  const cacheDir = join(dataDir.path, "repositories");
  const cache = new CloneCache({
    dir: cacheDir,
    maxBytes: settings.repositoryCacheBytes ?? DEFAULT_REPOSITORY_CACHE_BYTES,
    owner: agentId,
    clock,
  });
  const hands = new Hands({
    dataDir: dataDir.path,
    drivers,
    installationId,
    capacity,
    provisionsAtOnce,
    clock,
    log,
    mounts,
    repositories: new Repositories({ tunnels: sandboxTunnels, cache, clock, log }),
    readStored: readStoredThrough(tunnel),
    ...(reaperPeriodMs === undefined ? {} : { reaperPeriodMs }),
  });
  hands.onChange = (status) => tell({ case: "handReport", value: handReport(status) });
  const executions: Executions = new Executions({
    journal,
    hands,
    executeTool: withMounts(mounts, executeTool),
    leftProcesses: (handId) => void reportHand({ hands, executions }, tell, handId),
    clock,
    log,
    ...(tracing === undefined ? {} : { tracing }),
    dataDir: dataDir.path,
  });
  const transfers = new Transfers(hands, clock, log);
  sandboxTunnels.ownerOf = (handId) => hands.status(handId)?.ownerNumber;
  const resolver = new NameResolver({ clock });
  const reached = new ReachedHosts({ list: new ReachList(settings.reach ?? []), resolver, clock, log });
  const offline = new OfflineWatch({ hands, executions, clock, log, keepOfflineMs });
  const machine = new MachineWatch({ dir: dataDir.path, offers, tell, log });
  return {
    dataDir,
    key,
    offers,
    journal,
    hands,
    executions,
    transfers,
    reached,
    sandboxTunnels,
    offline,
    machine,
  };
}

function readStoredThrough(standing: () => Tunnel | undefined): ReadStoredFile {
  return async function* (handId, sha256, signal) {
    const tunnel = standing();
    if (tunnel === undefined) throw new HandError("the server cannot be reached");
    const either = AbortSignal.any([signal, tunnel.signal]);
    for await (const { chunk } of tunnel.client.readResource({ handId, sha256 }, { signal: either }))
      yield chunk;
  };
}

/** Tells the server of the processes that ended calls have left running in the hand. */
async function reportHand(
  { hands, executions }: Pick<AgentParts, "hands" | "executions">,
  tell: Tunnel["send"],
  handId: string,
): Promise<void> {
  const running = new Set(executions.statuses().flatMap(({ key, running: runs }) => (runs ? [key] : [])));
  const processes = await hands.leftProcesses(handId).catch(() => []);
  const left = processes.filter(({ callId }) => callId !== undefined && !running.has(callId));
  const status = hands.status(handId);
  if (status !== undefined) tell({ case: "handReport", value: handReport(status, left) });
}
