/** An environment as existing clients know it (pure). */
import {
  type Environment,
  type EnvironmentSpec,
  type Network,
  NetworkMode,
  type Packages,
} from "../../../../proto/gen/tendon/v1/environment_pb.js";
import { timeJson } from "../time-json.ts";

export function environmentJson({ id, spec, createdAt, updatedAt, archivedAt }: Environment) {
  return {
    type: "environment",
    id,
    name: spec!.name,
    description: spec!.description || null,
    config: configJson(spec!),
    metadata: spec!.metadata,
    scope: "organization",
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt),
    archived_at: timeJson(archivedAt),
  };
}

function configJson(spec: EnvironmentSpec) {
  if (spec.selfHosted) return { type: "self_hosted" };
  const { driver, image, pool, labels, sessionFiles, mcpTunnelHosts } = spec;
  return {
    type: "cloud",
    networking: networkingJson(spec.network),
    packages: packagesJson(spec.packages),
    tendon: { driver, image, pool, labels, session_files: sessionFiles, mcp_tunnel_hosts: mcpTunnelHosts },
  };
}

function packagesJson(packages: Packages | undefined) {
  const { apt = [], cargo = [], gem = [], go = [], npm = [], pip = [] } = packages ?? {};
  return { type: "packages", apt, cargo, gem, go, npm, pip };
}

function networkingJson(network: Network | undefined) {
  const mode = network?.mode ?? NetworkMode.UNSPECIFIED;
  if (mode === NetworkMode.UNSPECIFIED || mode === NetworkMode.UNRESTRICTED) return { type: "unrestricted" };
  return {
    type: "limited",
    allowed_hosts: network?.allowedHosts ?? [],
    allow_mcp_servers: network?.allowMcpServers ?? false,
    allow_package_managers: network?.allowPackageManagers ?? false,
  };
}
