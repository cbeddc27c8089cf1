/** Puts the part together that leads tunnels. */
import type { Clock } from "../../kit/clock.ts";
import { TendonError } from "../../kit/errors.ts";
import type { Area } from "../ports/area.ts";
import type { Metrics } from "../ports/metrics.ts";
import type { PrivateAgents } from "../ports/private-agents.ts";
import type { TunnelStreams } from "../ports/tunnels.ts";
import { OpenTunnels, TUNNEL_LIMITS, type TunnelLimits } from "./open-tunnels.ts";
import { PrivateHosts } from "./private-hosts.ts";
import { TunnelAccess, type TunnelAccessDeps } from "./tunnel-access.ts";
import { TunnelService, type TunnelServiceDeps } from "./tunnel-service.ts";

export interface TunnelAreaDeps extends TunnelAccessDeps, Pick<TunnelServiceDeps, "proxies" | "peers"> {
  readonly agents: () => PrivateAgents;
  readonly metrics: Metrics;
  readonly clock: Clock;
  readonly limits?: Partial<TunnelLimits>;
}

export function createTunnelArea(deps: TunnelAreaDeps): Area & { readonly streams: TunnelStreams } {
  const { clock, metrics } = deps;
  const tunnels = new OpenTunnels(clock, { ...TUNNEL_LIMITS, ...deps.limits });
  metrics.gauge("tendon_open_tunnels", "Tunnels that go through this replica.", () => tunnels.size);
  const draining = new TendonError("DRAINING", "this server is stopping; connect again", { part: "tunnel" });
  return {
    name: "tunnel",
    streams: new TunnelService({
      ...deps,
      tunnels,
      access: new TunnelAccess(deps),
      privateHosts: new PrivateHosts(deps),
    }),
    parts: [
      {
        name: "tunnels",
        start: async () => tunnels.start(),
        stop: async () => tunnels.stop(),
      },
    ],
    async drain(graceMs) {
      tunnels.refuse(draining);
      const deadlineMs = clock.monotonicMs() + graceMs / 2;
      while (tunnels.size > 0 && clock.monotonicMs() < deadlineMs) await clock.sleep(20);
      tunnels.endAll(draining);
    },
  };
}
