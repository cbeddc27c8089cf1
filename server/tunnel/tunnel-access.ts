/** Looks up, at each connection anew, for whom a hand asks and whether it may: the agent names the hand and nothing else. */
import { create, fromJson, type JsonValue } from "@bufbuild/protobuf";
import { invalidField, notFound } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { isAllowedHost } from "../../kit/vault/allowed-hosts.ts";
import { TunnelKind, type TunnelOpen } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { type HandResource, HandResourceSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import { AskedRepositorySchema } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { TunnelAsk } from "../ports/tunnels.ts";
import type { CredentialStore } from "../store/credentials.ts";
import type { HandRecord, HandStore } from "../store/hands.ts";
import { checkHand, hostNotAllowed, refusal, repositoriesAt, type Target, targetOf } from "./rules.ts";

export interface TunnelAccessDeps {
  readonly hands: Pick<HandStore, "find">;
  readonly credentials: Pick<CredentialStore, "session" | "variables">;
}

export class TunnelAccess {
  private readonly deps: TunnelAccessDeps;

  constructor(deps: TunnelAccessDeps) {
    this.deps = deps;
  }

  /** What a proxy is asked for this connection. Throws what the contract says of StreamTunnel. */
  async allow(open: TunnelOpen, handAgentId: string): Promise<TunnelAsk> {
    const { handId, kind, ownerNumber } = open;
    const target = targetOf(open.host, open.port);
    if (target === undefined) throw invalidField("open.host", "must be a host name or address, with a port");
    const hand = await this.deps.hands.find(handId);
    // One of another agent is as unknown as one that nobody made.
    if (hand === undefined || hand.handAgentId !== handAgentId) throw notFound("hand", handId);
    checkHand(hand, Number(ownerNumber));
    const { sessionId, workspaceId } = hand;
    const session = await this.deps.credentials.session(sessionId);
    if (session === undefined || session.workspaceId !== workspaceId) throw notFound("session", sessionId);
    if (session.isArchived) throw refusal("SESSION_ARCHIVED", "the hand's session is archived");
    const variables = await this.checkTarget(kind, target, hand, sessionId);
    const { epoch } = session;
    const repositories = kind === TunnelKind.GIT ? repositoriesAt(target, resourcesOf(hand)) : [];
    return {
      tunnelId: newId("request"),
      sessionId,
      workspaceId,
      epoch,
      handId,
      kind,
      ...target,
      variables,
      repositories: repositories.map((each) => create(AskedRepositorySchema, each)),
    };
  }

  /** Names of the variables that are for the target; none for git. */
  private async checkTarget(
    kind: TunnelKind,
    target: Target,
    hand: HandRecord,
    sessionId: string,
  ): Promise<string[]> {
    if (kind === TunnelKind.GIT) {
      if (repositoriesAt(target, resourcesOf(hand)).length > 0) return [];
      throw hostNotAllowed("git", target);
    }
    if (kind !== TunnelKind.EGRESS) throw invalidField("open.kind", "is not known to this server");
    const variables = await this.deps.credentials.variables(sessionId);
    const names = variables.flatMap(({ credential }) => {
      const use = credential.use?.kind;
      if (use?.case !== "environmentVariable") return [];
      return isAllowedHost(target.host, use.value.allowedHosts) ? [use.value.name] : [];
    });
    if (names.length === 0) throw hostNotAllowed("egress", target);
    return names;
  }
}

function resourcesOf(hand: HandRecord): HandResource[] {
  return (JSON.parse(hand.resources) as JsonValue[]).map((each) => fromJson(HandResourceSchema, each));
}
