/** What of one hand's relay goes to the proxy instead of out by the environment's list. The server decides again at each. */

import { type Reason, TendonError } from "../../kit/errors.ts";
import { hostText, type Target, targetText } from "../../kit/network/host-name.ts";
import type { TunnelStream } from "../../kit/tunnel/tunnel-stream.ts";
import type { SandboxTunnels } from "../tunnels/sandbox-tunnels.ts";
import { HostPolicy } from "./host-policy.ts";
import { type RefusalReason, RelayRefusal } from "./refusal.ts";
import type { TunnelledTraffic } from "./relay.ts";

const REASONS: Partial<Record<Reason, RefusalReason>> = {
  ROLE_NOT_ALLOWED: "not_allowed_for_session",
  LEASE_FENCED: "not_allowed_for_session",
  SESSION_ARCHIVED: "not_allowed_for_session",
  HAND_LOST: "not_allowed_for_session",
  HAND_RELEASED: "not_allowed_for_session",
  NOT_CONFIGURED: "no_proxy",
  LIMIT_EXCEEDED: "too_many_connections",
  INVALID_FIELD: "bad_request",
};

export class HandTunnels {
  readonly takesGit: boolean;
  private readonly traffic: TunnelledTraffic;
  private readonly egress: HostPolicy;
  private readonly tunnels: SandboxTunnels | undefined;

  constructor(traffic: TunnelledTraffic, tunnels: SandboxTunnels | undefined) {
    this.traffic = traffic;
    this.takesGit = traffic.git;
    this.egress = new HostPolicy(traffic.egressHosts);
    this.tunnels = tunnels;
  }

  takesEgress({ host }: Target): boolean {
    return this.egress.allows(host);
  }

  /** Rejects with RelayRefusal. */
  async connect(kind: "egress" | "git", target: Target, signal: AbortSignal): Promise<TunnelStream> {
    const { handId } = this.traffic;
    const { port } = target;
    if (this.tunnels === undefined) throw new RelayRefusal("no_proxy", "this hand agent carries no tunnels");
    try {
      return await this.tunnels.connect({ handId, kind, host: hostText(target.host), port }, signal);
    } catch (error) {
      if (error instanceof RelayRefusal || !(error instanceof TendonError)) throw error;
      const { reason, message } = error;
      throw new RelayRefusal(
        REASONS[reason] ?? "tunnel_failed",
        `${targetText(target)}: ${message} (${reason})`,
      );
    }
  }
}
