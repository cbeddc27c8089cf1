/** Which version of the hand agents' protocol two builds speak, so that they can be updated one after the other. */
import { TendonError } from "../../kit/errors.ts";

export interface ProtocolVersions {
  readonly oldest: number;
  readonly newest: number;
}

/** What this build speaks. The release after a change speaks the version before it, too. */
export const PROTOCOL_VERSIONS: ProtocolVersions = { oldest: 1, newest: 1 };

/** The newest version that both speak. PROTOCOL_VERSION_UNSUPPORTED, in one line for whoever runs the agent. */
export function chooseVersion(
  greeting: { readonly protocolVersion: number; readonly oldestProtocolVersion: number },
  own: ProtocolVersions = PROTOCOL_VERSIONS,
): number {
  const agent = {
    oldest: greeting.oldestProtocolVersion || greeting.protocolVersion,
    newest: greeting.protocolVersion,
  };
  const chosen = Math.min(agent.newest, own.newest);
  if (chosen >= Math.max(agent.oldest, own.oldest)) return chosen;
  const older = agent.newest < own.oldest ? "hand agent" : "server";
  throw new TendonError(
    "PROTOCOL_VERSION_UNSUPPORTED",
    `the hand agent speaks version ${text(agent)} of the protocol, this server ${text(own)}; update the ${older}`,
    { supported: text(own) },
  );
}

function text({ oldest, newest }: ProtocolVersions): string {
  return oldest === newest ? String(newest) : `${oldest} to ${newest}`;
}
