/** What existing clients say of an environment, as the contract has it (pure). Throws INVALID_FIELD with the path in their words. */
import { clone, create } from "@bufbuild/protobuf";
import { invalidField, TendonError } from "../../../../kit/errors.ts";
import {
  type EnvironmentSpec,
  EnvironmentSpecSchema,
  type Network,
  NetworkMode,
  NetworkSchema,
  PackagesSchema,
} from "../../../../proto/gen/tendon/v1/environment_pb.js";
import type { Fields } from "../fields.ts";
import { patchedMetadata } from "../metadata.ts";

const MANAGERS = ["apt", "cargo", "gem", "go", "npm", "pip"] as const;
const INSTALL_TIMEOUT_MS = 15 * 60_000;

/** Of a creation. */
export function newEnvironmentSpec(fields: Fields): EnvironmentSpec {
  fields.requiredText("name");
  const spec = create(EnvironmentSpecSchema);
  spec.selfHosted = fields.object("config")?.word("type", ["cloud", "self_hosted"]) === "self_hosted";
  if (!spec.selfHosted) spec.network = create(NetworkSchema, { mode: NetworkMode.UNRESTRICTED });
  spec.sessionFiles = !spec.selfHosted;
  return changedEnvironmentSpec(spec, fields);
}

/** What is not said stays. */
export function changedEnvironmentSpec(before: EnvironmentSpec, fields: Fields): EnvironmentSpec {
  fields.only("name", "config", "description", "metadata", "scope");
  const spec = clone(EnvironmentSpecSchema, before);
  spec.name = fields.changedText("name") ?? spec.name;
  if (fields.has("description")) spec.description = fields.text("description") ?? "";
  fields.word("scope", ["organization"]);
  spec.metadata = patchedMetadata(spec.metadata, fields);
  const config = fields.object("config");
  if (config !== undefined) applyConfig(spec, config);
  return spec;
}

function applyConfig(spec: EnvironmentSpec, config: Fields): void {
  const type = config.word("type", ["cloud", "self_hosted"]);
  if (type === undefined) throw invalidField(config.at("type"), "is required");
  if ((type === "self_hosted") !== spec.selfHosted) {
    throw new TendonError("INVALID_FIELD", `${config.at("type")}: an environment keeps its type`, {
      field: config.at("type"),
      error_code: "invalid_config_type_change",
    });
  }
  if (type === "self_hosted") {
    config.only("type");
    return;
  }
  config.only("type", "networking", "packages", "tendon");
  const networking = config.object("networking");
  if (networking !== undefined) spec.network = networkOf(networking, spec.network);
  const packages = config.object("packages");
  if (packages !== undefined) applyPackages(spec, packages);
  const extension = config.object("tendon");
  if (extension !== undefined) applyExtension(spec, extension);
}

/** Nothing is reached with an empty list, which is a mode of its own in the contract. */
function networkOf(networking: Fields, before: Network | undefined): EnvironmentSpec["network"] {
  const type = networking.word("type", ["unrestricted", "limited"]);
  if (type === undefined) throw invalidField(networking.at("type"), "is required");
  if (type === "unrestricted") {
    networking.only("type");
    return create(NetworkSchema, { mode: NetworkMode.UNRESTRICTED });
  }
  networking.only("type", "allowed_hosts", "allow_mcp_servers", "allow_package_managers");
  const isBefore = before?.mode === NetworkMode.NONE || before?.mode === NetworkMode.LIMITED;
  const kept = isBefore ? before : undefined;
  const allowMcpServers = networking.flag("allow_mcp_servers") ?? kept?.allowMcpServers ?? false;
  const allowPackageManagers =
    networking.flag("allow_package_managers") ?? kept?.allowPackageManagers ?? false;
  const allowedHosts = [...(networking.texts("allowed_hosts") ?? kept?.allowedHosts ?? [])];
  const isNone = allowedHosts.length === 0 && !allowMcpServers && !allowPackageManagers;
  const mode = isNone ? NetworkMode.NONE : NetworkMode.LIMITED;
  return create(NetworkSchema, { mode, allowedHosts, allowMcpServers, allowPackageManagers });
}

/** What is not said of them stays. */
function applyPackages(spec: EnvironmentSpec, fields: Fields): void {
  fields.only("type", ...MANAGERS);
  fields.word("type", ["packages"]);
  const packages = spec.packages ?? create(PackagesSchema);
  for (const name of MANAGERS) if (fields.has(name)) packages[name] = [...(fields.texts(name) ?? [])];
  spec.packages = packages;
  // The first hand waits until they are installed.
  const hasAny = MANAGERS.some((name) => packages[name].length > 0);
  if (hasAny && spec.provisionTimeoutMs === 0) spec.provisionTimeoutMs = INSTALL_TIMEOUT_MS;
}

/** What only Tendon has. */
function applyExtension(spec: EnvironmentSpec, fields: Fields): void {
  fields.only("driver", "image", "pool", "labels", "session_files", "mcp_tunnel_hosts");
  if (fields.has("driver")) spec.driver = fields.text("driver") ?? "";
  if (fields.has("image")) spec.image = fields.text("image") ?? "";
  if (fields.has("pool")) spec.pool = fields.text("pool") ?? "";
  spec.sessionFiles = fields.flag("session_files") ?? spec.sessionFiles;
  if (fields.has("mcp_tunnel_hosts")) spec.mcpTunnelHosts = [...(fields.texts("mcp_tunnel_hosts") ?? [])];
  if (fields.has("labels")) spec.labels = labelsOf(fields.object("labels"));
}

function labelsOf(fields: Fields | undefined): Record<string, string> {
  const names = Object.keys(fields?.value ?? {});
  return Object.fromEntries(names.map((name) => [name, fields?.text(name) ?? ""]));
}
