/** Hands with a limited network and with none, in a world whose names lead where attackers would have them lead. */
import type { NetworkAgent } from "../integration/fixtures/network-agent.mts";
import type { CalledProcess } from "./called-process.ts";
import { type NetworkRig, WORLD } from "./network-rig.ts";

const { web, other } = WORLD;

/** What the hand "limited" of these tests may reach. */
export const ALLOWED = [
  "web.example",
  "*.wild.example",
  "by-file.example",
  "six.example",
  "both.example",
  "rebind.example",
  "private.example",
  "metadata.example",
  "mapped.example",
  "agent.example",
  "own.example",
  "wandering.example",
];
/** What the world's name server answers; a name with several answers gives them in turn. */
export const RECORDS: Record<string, string[][]> = {
  "web.example": [[web, WORLD.webV6]],
  "a.wild.example": [[web]],
  "b.a.wild.example": [[web]],
  "wild.example": [[web]],
  "evil.example": [[other]],
  "six.example": [[WORLD.webV6]],
  "both.example": [["10.99.99.99", web, "127.0.0.1"]],
  "rebind.example": [[web], ["127.0.0.1"]],
  "private.example": [[WORLD.private, "192.168.1.1"]],
  "metadata.example": [[WORLD.metadata, WORLD.metadataV6, WORLD.otherMetadata]],
  "mapped.example": [["::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::7f00:1", "::7f00:1"]],
  "agent.example": [["127.0.0.1", "::1", "0.0.0.0"]],
  "own.example": [["10.77.1.2"]],
  "wandering.example": [[web]],
};

export interface NetworkHands {
  readonly agent: CalledProcess<NetworkAgent>;
  bash(hand: string, command: string): Promise<string>;
  /** The status of a request of the hand "limited", or curl's number for what went wrong. */
  fetch(url: string, options?: string): Promise<string>;
}

/** An agent with the hands "limited" and "none". */
export async function startNetworkHands(rig: NetworkRig): Promise<NetworkHands> {
  const agent = await rig.agent();
  await rig.farSide.call("setRecords", RECORDS);
  await agent.call("provision", "limited", { mode: "limited", allowedHosts: ALLOWED });
  await agent.call("provision", "none", { mode: "none" });
  const bash = (hand: string, command: string) => agent.call("bash", hand, command);
  return {
    agent,
    bash,
    fetch: (url, options = "") =>
      bash("limited", `curl -sk -m 15 -o body -w '%{http_code}' ${options} '${url}' || echo " $?"; true`),
  };
}
