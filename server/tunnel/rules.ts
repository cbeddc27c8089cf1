/** Where a hand's connections to the proxy may lead: what its session has a repository or a variable for. Pure. */
import { TendonError } from "../../kit/errors.ts";
import { hostText, parseHost } from "../../kit/network/host-name.ts";
import type { HandResource } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandRecord } from "../store/hands.ts";

export type TunnelKindName = "egress" | "git";

export interface Target {
  readonly host: string;
  readonly port: number;
}

export interface GivenRepository {
  readonly url: string;
  /** Globs; empty: whatever its credential allows. */
  readonly pushBranches: string[];
}

const HTTPS_PORT = 443;

/** The target in one spelling; undefined for what names no host. */
export function targetOf(host: string, port: number): Target | undefined {
  const parsed = parseHost(host);
  if (parsed === undefined || port < 1 || port > 65_535) return undefined;
  return { host: hostText(parsed), port };
}

/** Those of the hand's repositories that are at this host and port, with what may be pushed to. */
export function repositoriesAt(target: Target, resources: readonly HandResource[]): GivenRepository[] {
  return resources.flatMap(({ kind }) => {
    if (kind.case !== "gitRepository" || !URL.canParse(kind.value.url)) return [];
    const { hostname, port } = new URL(kind.value.url);
    const at = targetOf(hostname.replace(/^\[(.*)\]$/, "$1"), port === "" ? HTTPS_PORT : Number(port));
    if (at?.host !== target.host || at.port !== target.port) return [];
    const { url, pushBranches } = kind.value;
    return [{ url, pushBranches }];
  });
}

/** Throws when the hand may have no connections now. A hand that is being made clones its repositories. */
export function checkHand(
  hand: HandRecord,
  ownerNumber: number,
): asserts hand is HandRecord & { sessionId: string } {
  if (hand.state === "lost") throw refusal("HAND_LOST", "the hand is lost");
  if (hand.state === "released") throw refusal("HAND_RELEASED", "the hand was released");
  if (hand.state === "parked") throw refusal("HAND_NOT_READY", "the hand is parked");
  if (ownerNumber < hand.ownerNumber)
    throw refusal("LEASE_FENCED", "the hand belongs to another session now; connect again");
  if (hand.sessionId === undefined)
    throw refusal("ROLE_NOT_ALLOWED", "the hand belongs to no session, and so to no credentials");
}

export function hostNotAllowed(kind: TunnelKindName, { host, port }: Target): TendonError {
  const why =
    kind === "git"
      ? `the session has no repository at ${host}${port === HTTPS_PORT ? "" : `:${port}`}`
      : `no variable credential of the session is for ${host}`;
  return refusal("ROLE_NOT_ALLOWED", why);
}

export function refusal(reason: ConstructorParameters<typeof TendonError>[0], message: string): TendonError {
  return new TendonError(reason, message, { part: "tunnel" });
}
