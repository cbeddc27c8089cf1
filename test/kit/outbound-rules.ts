/** Rules for outbound requests of a machine with two addresses of its own. */
import { type Listener, OutboundRules } from "../../mcp-proxy/outbound/rules.ts";

export function rulesWith({
  deny = [],
  listeners = [],
  publicOnly = false,
  privateAllowedBy,
}: {
  deny?: string[];
  listeners?: Listener[];
  publicOnly?: boolean;
  privateAllowedBy?: string;
} = {}) {
  return new OutboundRules({
    deny,
    publicOnly,
    privateAllowedBy,
    ownAddresses: () => new Set(["192.0.2.7", "10.1.1.1"]),
    ownListeners: () => listeners,
  });
}
