/** Which MCP servers a session reaches through hand agents because its environment says so (pure). */
import { fromJsonString } from "@bufbuild/protobuf";
import { parseTarget } from "../../kit/network/host-name.ts";
import { matchesPattern, parseHostPattern } from "../../kit/network/host-pattern.ts";
import { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";

const HTTPS_PORT = 443;

/**
 * The pool whose hand agents reach the URL's host; undefined where the proxy goes there by itself. `environment` is JSON text
 * of a spec. Plain HTTP is never led this way: it would be read on it.
 */
export function tunnelPoolOf(url: string, environment: string | undefined): string | undefined {
  if (environment === undefined || !URL.canParse(url)) return undefined;
  const { protocol, host } = new URL(url);
  const target = protocol === "https:" ? parseTarget(host, HTTPS_PORT) : undefined;
  if (target === undefined) return undefined;
  const spec = fromJsonString(EnvironmentSpecSchema, environment, { ignoreUnknownFields: true });
  const isListed = spec.mcpTunnelHosts.some((text) => {
    const pattern = parseHostPattern(text, HTTPS_PORT);
    return pattern !== undefined && matchesPattern(target, pattern);
  });
  return isListed ? spec.pool : undefined;
}
