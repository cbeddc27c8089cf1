/** What a hand is made from: its environment, with what its session adds to it. */
import { clone, fromJsonString } from "@bufbuild/protobuf";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type EnvironmentSpec, EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import { environmentOf } from "./hand-messages.ts";

/** With `allow_mcp_servers` its hosts are allowed that the session's MCP servers have now. */
export async function environmentFor(
  { store, defaultImage = "" }: Pick<HandDeps, "store" | "defaultImage">,
  hand: HandRecord,
): Promise<EnvironmentSpec> {
  const environment = environmentOf(hand);
  // A driver without images takes none.
  const { driver, image } = environment;
  if (driver === "" && image === "" && hand.driver !== "process") environment.image = defaultImage;
  if (environment.network?.allowMcpServers !== true || hand.sessionId === undefined) return environment;
  const session = await store.sessions.find(hand.sessionId);
  if (session === undefined) return environment;
  const { spec } = fromJsonString(AgentSchema, session.agent, { ignoreUnknownFields: true });
  const hosts = (spec?.mcpServers ?? []).flatMap(({ url }) => hostOf(url));
  const wider = clone(EnvironmentSpecSchema, environment);
  wider.network!.allowedHosts = [...new Set([...environment.network.allowedHosts, ...hosts])];
  return wider;
}

/** Servers in private networks have no address that a hand could reach. */
function hostOf(url: string): string[] {
  try {
    const { protocol, hostname } = new URL(url);
    return protocol === "https:" || protocol === "http:" ? [hostname] : [];
  } catch {
    return [];
  }
}
