/**
 * Where a sandbox's connection leads on: by TLS, verified, to the host that it asked for. A host with a public address is
 * reached from here. One without, or that this machine does not know, is first asked for at the hand agent that the sandbox
 * belongs to, which says whether its machine reaches it for the proxy (TENDON_HAND_AGENT_REACH); if not, from here after all.
 */

import { Agent } from "node:https";
import type { Duplex } from "node:stream";
import type { Outbound } from "../outbound/outbound.ts";
import type { PrivateNetworks } from "../outbound/private-networks.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";
import type { SandboxConnection } from "../tunnels/sandbox-connection.ts";

export interface WayOutDeps {
  readonly outbound: Pick<Outbound, "connect" | "hasPublicAddress">;
  readonly privateNetworks: Pick<PrivateNetworks, "connect">;
}

type Created = (error: Error | null, socket?: Duplex) => void;

/** Shorter than what hosts keep idle connections for. */
const IDLE_MS = 4_000;

/**
 * Connections of one sandbox's connection, one at a time: what comes over it is answered in order, and nothing that goes
 * wrong between two programs' views of one connection reaches another session.
 */
export function agentFor(deps: WayOutDeps, connection: SandboxConnection): Agent {
  const agent = new Agent({ keepAlive: true, maxSockets: 1, maxFreeSockets: 1, timeout: IDLE_MS });
  const createConnection = (_options: object, created: Created): undefined => {
    connect(deps, connection).then(
      (socket) => created(null, socket),
      (error: Error) => created(error),
    );
  };
  // The type knows only agents that give a socket at once; the library itself takes both.
  return Object.assign(agent, { createConnection });
}

async function connect(deps: WayOutDeps, connection: SandboxConnection): Promise<Duplex> {
  const { host, port, sessionId, handId } = connection;
  const destination = { host: host.replace(/^\[|\]$/g, ""), port, isSecure: true };
  if (await deps.outbound.hasPublicAddress(destination)) return deps.outbound.connect(destination);
  try {
    return await deps.privateNetworks.connect({ sessionId, handId }, destination);
  } catch (error) {
    // Its machine does not let it: the host is none of that network's.
    if (!(error instanceof OutboundRefusal) || error.reason !== "address_not_allowed") throw error;
    return deps.outbound.connect(destination);
  }
}
