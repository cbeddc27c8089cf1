/** Makes a session that goes on from another one's log. */
import { fromJsonString } from "@bufbuild/protobuf";
import { contentHash } from "../../kit/canonical-json.ts";
import { newId } from "../../kit/ids.ts";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type ForkSessionRequest,
  ForkSessionRequestSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Principal, workspaceOf } from "../ports/principal.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { LogCopyStore } from "../store/log-copies.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import type { ChangedSession, SessionStanding, SessionStore } from "../store/sessions.ts";
import { budgetText, type CreationDeps, checkTexts } from "./creation.ts";
import { checkVariables } from "./variable-check.ts";
import { checkVaults } from "./vault-check.ts";
import { startOf } from "./watch.ts";

export interface ForkDeps extends Pick<CreationDeps, "vaults" | "credentials" | "environments"> {
  readonly logCopies: Pick<LogCopyStore, "fork">;
  readonly sessions: Pick<SessionStore, "find">;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly defaultWorkspaceId: string;
}

export interface ForkCall {
  readonly principal: Principal;
  /** Of the origin, for who may see it. NOT_FOUND. */
  readonly standing: () => Promise<SessionStanding>;
}

/** See ForkSession in the contract for what it fails with. */
export function forkLog(
  deps: ForkDeps,
  request: ForkSessionRequest,
  { principal, standing }: ForkCall,
): Promise<ChangedSession> {
  const { sessionId, requestId, title, vaultIds } = request;
  const made = {
    requestId,
    contentHash: contentHash(ForkSessionRequestSchema, { ...request, requestId: "" }),
  };
  // Of a repeat whose origin is gone only the caller can say where the fork is.
  const claim = { ...made, scope: SCOPES.fork, workspaceId: workspaceOf(principal, deps.defaultWorkspaceId) };
  const fork = async () => {
    const { workspaceId, head } = await standing();
    claim.workspaceId = workspaceId;
    checkTexts(request);
    await checkVaults(deps.vaults, vaultIds, workspaceId);
    const origin = vaultIds.length === 0 ? undefined : await deps.sessions.find(sessionId);
    if (origin !== undefined) {
      const agent = fromJsonString(AgentSchema, origin.agent, { ignoreUnknownFields: true });
      await checkVariables(deps, { vaultIds, workspaceId }, { ...origin, agent });
    }
    // The head only says where to end when no position does: a repeat is the same request wherever the log is by then.
    const position = request.position === 0n ? head : startOf(sessionId, request.position, head, "position");
    return deps.logCopies.fork({
      sessionId: newId("session"),
      workspaceId,
      originSessionId: sessionId,
      position,
      title: title === "" ? undefined : title,
      vaultIds,
      budget: budgetText(request.budget),
      request: made,
    });
  };
  return madeOnce(deps.requestIds, claim, fork, async (id) => {
    const session = await deps.sessions.find(id);
    return session && { session, appended: undefined };
  });
}
