/** Puts the parts that know hands together. */
import { TendonError } from "../../kit/errors.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { HandAgentService } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { HandControl } from "../ports/hand-control.ts";
import type { HandFiles } from "../ports/hand-files.ts";
import { type HandsForPeers, NO_PEERS, type Peers } from "../ports/peers.ts";
import type { PrivateAgents } from "../ports/private-agents.ts";
import { NO_TUNNELS } from "../ports/tunnels.ts";
import { AgentConnections } from "./agent-connections.ts";
import { createHandAgentService } from "./agent-service.ts";
import { AgentTransfers } from "./agent-transfers.ts";
import { CallOrders } from "./call-orders.ts";
import { Conclusions } from "./conclusions.ts";
import { Copies } from "./copies.ts";
import type { HandDeps } from "./deps.ts";
import { ExecutionHub } from "./execution-hub.ts";
import { ExecutionStreams } from "./execution-streams.ts";
import { Executor } from "./executor.ts";
import { createHandControl } from "./hand-control.ts";
import { HandEndings } from "./hand-endings.ts";
import { HandOvers } from "./hand-over.ts";
import { HandParking } from "./hand-parking.ts";
import { PeerAccess } from "./peer-access.ts";
import { PeerFeeds } from "./peer-feeds.ts";
import { PrivateDials } from "./private-dials.ts";
import { Provisioner } from "./provisioner.ts";
import { ReachableAgents } from "./reachable-agents.ts";
import { Reconciler } from "./reconcile.ts";
import { HandServiceHandler } from "./service.ts";
import { SessionFiles } from "./session-files.ts";
import { Sweeper } from "./sweeper.ts";
import { checkHandTiming, HAND_TIMING, type HandTiming } from "./timing.ts";
import { ToolLists } from "./tool-lists.ts";
import { WorkerOffers } from "./worker-offers.ts";

export interface HandAreaOptions
  extends Omit<HandDeps, "timing" | "defaultDriver" | "peers" | "tunnels" | "workQueue"> {
  /** Not set: workers find calls by looking. */
  readonly workQueue?: HandDeps["workQueue"];
  /** Not set: sandboxes reach no proxy. */
  readonly tunnels?: HandDeps["tunnels"];
  /** Not set: hand agents of other replicas are out of reach. */
  readonly peers?: Peers;
  readonly timing?: Partial<HandTiming>;
  /** Driver of environments that name none; default `process`. */
  readonly defaultDriver?: string;
  /** Cuts the connection whose other end this is at once (`Listener.destroyPeer`). */
  readonly destroyPeer: (peer: string) => void;
}

export interface HandArea extends Area {
  readonly control: HandControl;
  readonly files: HandFiles;
  /** What other replicas may do with the agents that are connected here. */
  readonly forPeers: HandsForPeers;
  /** As those who connect the proxy to hosts of their networks. */
  readonly privateAgents: PrivateAgents;
  /** Hand agents whose connections this replica holds. */
  readonly connectedAgents: () => number;
  /** Executions that this replica has to do with now. */
  readonly runningExecutions: () => number;
  /** Copies whose agents are connected to this replica. */
  readonly openCopies: () => number;
  /** Bytes of output that this replica keeps for readers; at most 1 MiB for each running execution. */
  readonly bufferedBytes: () => number;
}

export function createHandArea(options: HandAreaOptions): HandArea {
  const timing = { ...HAND_TIMING, ...options.timing };
  checkHandTiming(timing);
  const { peers = NO_PEERS, defaultDriver = "process", tunnels = () => NO_TUNNELS } = options;
  const workQueue = options.workQueue ?? (() => ({ queued: () => {} }));
  const deps: HandDeps = { ...options, timing, peers, tunnels, defaultDriver, workQueue };
  const { clock, log } = deps;
  const connections = new AgentConnections();
  const links = new ReachableAgents(deps, connections);
  const toolLists = new ToolLists(deps.store.handAgents);
  const hub = new ExecutionHub({ clock, log, readerStallMs: timing.readerStallMs });
  const conclusions = new Conclusions(deps, hub);
  const endings = new HandEndings(deps, links, conclusions);
  const parking = new HandParking(deps, { links, conclusions });
  const provisioner = new Provisioner(deps, { links, endings, conclusions, parking });
  const offers = new WorkerOffers(deps, { provisioner, conclusions });
  const executor = new Executor(deps, { links, hub, conclusions, provisioner, offers, toolLists });
  const feeds = new PeerFeeds(deps, { connections, agents: links, hub });
  const forPeers = new PeerAccess(deps, connections, hub);
  const reconciler = new Reconciler(deps, { endings, conclusions, provisioner });
  const streams = new ExecutionStreams(deps, hub, conclusions);
  const handService = new HandServiceHandler(deps, {
    orders: new CallOrders(deps),
    executor,
    endings,
    copies: new Copies(deps, { links, provisioner, conclusions }),
    handOvers: new HandOvers(deps, { links, conclusions }),
    provisioner,
    offers,
    toolLists,
  });
  const transfers = new AgentTransfers(deps);
  const files = new SessionFiles(deps, { links, connections });
  const agentService = createHandAgentService(deps, {
    connections,
    links,
    reconciler,
    streams,
    transfers,
    destroyPeer: options.destroyPeer,
  });
  return {
    name: "hands",
    services: [bindService(HandService, handService), bindService(HandAgentService, agentService)],
    parts: [
      provisioner,
      feeds,
      new Sweeper(deps, { connections, hub, conclusions, endings, provisioner, parking, files }),
    ],
    files,
    forPeers,
    privateAgents: new PrivateDials(deps, connections, links),
    control: createHandControl(deps, { connections, conclusions, endings, provisioner, toolLists }),
    connectedAgents: () => connections.all().length,
    runningExecutions: () => hub.size,
    openCopies: () => transfers.size,
    bufferedBytes: () => hub.bufferedBytes,
    drain: (graceMs) => drain(deps, { connections, executor }, graceMs),
  };
}

/**
 * Agents are told, and have half of the grace to end their connections themselves; then they and those who wait for
 * calls are sent away. What runs goes on, and is followed wherever they come back.
 */
async function drain(
  deps: HandDeps,
  { connections, executor }: { connections: AgentConnections; executor: Executor },
  graceMs: number,
): Promise<void> {
  const error = new TendonError("DRAINING", "the server stops; connect again");
  connections.refuse(error);
  for (const connection of connections.all()) connection.post({ case: "draining", value: {} });
  await allGone(deps, connections, graceMs / 2);
  executor.sendAway(error);
  for (const connection of connections.all()) connection.end(error);
  await allGone(deps, connections, graceMs / 2);
}

async function allGone({ clock }: HandDeps, connections: AgentConnections, withinMs: number): Promise<void> {
  const deadlineMs = clock.monotonicMs() + withinMs;
  while (connections.all().length > 0 && clock.monotonicMs() < deadlineMs) {
    await clock.sleep(Math.max(1, Math.min(20, withinMs)));
  }
}
