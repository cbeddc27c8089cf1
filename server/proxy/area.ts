/** Puts the parts of the proxy area together. */
import { bindService } from "../../kit/rpc/service.ts";
import { ProxyService } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { Metrics } from "../ports/metrics.ts";
import type { Peers } from "../ports/peers.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { SessionTokens } from "../ports/session-tokens.ts";
import type { ReplicaStore } from "../store/replicas.ts";
import { ProxyConnections } from "./proxy-connections.ts";
import { type ProxyDeps, ProxyServiceHandler } from "./service.ts";

export interface ProxyAreaDeps extends Omit<ProxyDeps, "connections"> {
  readonly sessionTokens: SessionTokens;
  readonly replicas: ReplicaStore;
  readonly peers: () => Pick<Peers, "askProxy">;
  readonly metrics: Metrics;
}

export function createProxyArea(deps: ProxyAreaDeps): Area & { readonly directory: ProxyDirectory } {
  const connections = new ProxyConnections(deps);
  const handler = new ProxyServiceHandler({ ...deps, connections });
  deps.metrics.gauge(
    "tendon_connected_proxies",
    "Proxies connected to this replica.",
    () => connections.size,
  );
  return {
    name: "proxy",
    services: [bindService(ProxyService, handler)],
    parts: [connections],
    directory: connections,
    drain: async (graceMs) => handler.drain(graceMs),
  };
}
