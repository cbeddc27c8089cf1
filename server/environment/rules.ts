/** What an environment may be, beyond what the proto's own rules say. Errors name the field's path in the request. */
import { invalidField } from "../../kit/errors.ts";
import { parseHostPattern } from "../../kit/network/host-pattern.ts";
import { refuseNul } from "../../kit/nul.ts";
import { type EnvironmentSpec, type Network, NetworkMode } from "../../proto/gen/tendon/v1/environment_pb.js";

const VARIABLE_NAME = /^[A-Za-z_][A-Za-z0-9_]{0,127}$/;
const LABEL_NAME = /^[A-Za-z0-9]([A-Za-z0-9._/-]{0,62}[A-Za-z0-9])?$/;
const POOL = /^([a-z0-9][a-z0-9_-]*)?$/;
const HOST =
  /^(\*\.)?[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*$/;
const MAX_LABEL_CHARS = 63;
const MAX_VARIABLE_CHARS = 32 * 1024;
const MAX_IDLE_MS = 30 * 86_400_000;
/** What timers can hold. */
const MAX_WARM_MS = 24 * 86_400_000;
const MAX_KEPT_MS = 365 * 86_400_000;

/** Throws INVALID_FIELD for the first thing that is wrong. */
export function checkEnvironmentSpec(spec: EnvironmentSpec): void {
  refuseNul(spec, "spec");
  if (!POOL.test(spec.pool)) throw invalidField("spec.pool", "must be lower-case letters, digits, _ and -");
  checkDriver(spec);
  checkLabels(spec.labels);
  checkVariables(spec.variables);
  if (spec.network !== undefined) checkNetwork(spec.network);
  checkPackages(spec);
  checkTunnelHosts(spec);
  if (spec.idleTimeoutMs > MAX_IDLE_MS) throw invalidField("spec.idle_timeout_ms", "must be at most 30 days");
  if (spec.keepParkedMs > MAX_KEPT_MS) throw invalidField("spec.keep_parked_ms", "must be at most 365 days");
  if (spec.maxAgeMs > MAX_KEPT_MS) throw invalidField("spec.max_age_ms", "must be at most 365 days");
  if ((spec.warmPool?.maxAgeMs ?? 0n) > MAX_WARM_MS)
    throw invalidField("spec.warm_pool.max_age_ms", "must be at most 24 days");
  if (spec.container?.workdir.split("/").some((part) => part === "." || part === ".."))
    throw invalidField("spec.container.workdir", "must be a path without . and ..");
}

function checkTunnelHosts({ mcpTunnelHosts, pool }: EnvironmentSpec): void {
  if (mcpTunnelHosts.length > 0 && pool === "")
    throw invalidField("spec.mcp_tunnel_hosts", "needs a pool, whose hand agents reach these hosts");
  const wrong = mcpTunnelHosts.findIndex((text) => parseHostPattern(text, 443) === undefined);
  if (wrong < 0) return;
  throw invalidField(
    `spec.mcp_tunnel_hosts[${wrong}]`,
    "must be a host name, *.example.com for all below, or an address, with a port where it is not 443",
  );
}

/** What every build of these drivers needs or refuses. Other names may be drivers of newer hand agents. */
function checkDriver({ driver, image, container }: EnvironmentSpec): void {
  if (driver === "docker" && image === "")
    throw invalidField("spec.image", "the driver docker needs the name of an image");
  if (driver !== "process") return;
  if (image !== "") throw invalidField("spec.image", "the driver process takes no image");
  if (container !== undefined && (container.workdir !== "" || container.runtime !== "" || container.pull))
    throw invalidField("spec.container", "the driver process has no containers");
}

function checkLabels(labels: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(labels)) {
    const path = `spec.labels["${name.slice(0, MAX_LABEL_CHARS)}"]`;
    if (!LABEL_NAME.test(name))
      throw invalidField(path, "a label's name has 1 to 64 letters, digits, . _ / and -");
    if (value.length > MAX_LABEL_CHARS)
      throw invalidField(path, `must have at most ${MAX_LABEL_CHARS} characters`);
  }
}

function checkVariables(variables: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(variables)) {
    const path = `spec.variables["${name.slice(0, MAX_LABEL_CHARS)}"]`;
    if (!VARIABLE_NAME.test(name)) throw invalidField(path, "a variable's name has letters, digits and _");
    if (value.length > MAX_VARIABLE_CHARS)
      throw invalidField(path, `must have at most ${MAX_VARIABLE_CHARS} characters`);
  }
}

const MANAGERS = ["apt", "cargo", "gem", "go", "npm", "pip"] as const;
/** What package managers write: no white space, nothing that a program could take for an option. */
const PACKAGE = /^[^\s\p{Cc}'"`$\\-][^\s\p{Cc}'"`$\\]{0,255}$/u;

function checkPackages({ packages, network, driver }: EnvironmentSpec): void {
  if (packages === undefined) return;
  for (const manager of MANAGERS) {
    const wrong = packages[manager].findIndex((name) => !PACKAGE.test(name));
    if (wrong >= 0)
      throw invalidField(
        `spec.packages.${manager}[${wrong}]`,
        "must be a package's name, with its version or without",
      );
  }
  const [used] = MANAGERS.filter((manager) => packages[manager].length > 0);
  if (used === undefined) return;
  if (driver === "process")
    throw invalidField(`spec.packages.${used}`, "the driver process has no image to put packages into");
  const mode = network?.mode ?? NetworkMode.UNSPECIFIED;
  const isClosed = mode === NetworkMode.LIMITED || mode === NetworkMode.NONE;
  if (isClosed && network?.allowPackageManagers !== true)
    throw invalidField(`spec.packages.${used}`, "needs allow_package_managers where the network is limited");
}

function checkNetwork({ mode, allowedHosts, allowMcpServers, allowPackageManagers }: Network): void {
  const reachesMore = allowMcpServers || allowPackageManagers;
  if (reachesMore && mode !== NetworkMode.LIMITED)
    throw invalidField("spec.network.mode", "hosts are allowed with the mode limited");
  if (allowedHosts.length > 0 && mode !== NetworkMode.LIMITED) {
    throw invalidField("spec.network.allowed_hosts", "only counts with the mode limited");
  }
  if (mode === NetworkMode.LIMITED && allowedHosts.length === 0 && !reachesMore) {
    throw invalidField(
      "spec.network.allowed_hosts",
      "the mode limited needs a host; for none use the mode none",
    );
  }
  const wrong = allowedHosts.findIndex((host) => !HOST.test(host));
  if (wrong < 0) return;
  throw invalidField(
    `spec.network.allowed_hosts[${wrong}]`,
    "must be a host name, or *.example.com for all of its subdomains",
  );
}
