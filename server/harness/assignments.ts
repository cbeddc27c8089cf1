/**
 * What a harness gets with a lease. What does not depend on the lease is read while the lease is taken, since a message
 * waits for its brain all that time.
 */
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { LeaseProofSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { ToolDescriptionSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import {
  type Assignment,
  AssignmentSchema,
  SlotToolsSchema,
} from "../../proto/gen/tendon/v1/harness_service_pb.js";
import type { HandControl } from "../ports/hand-control.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { SessionDirectory, SessionView } from "../ports/session-directory.ts";
import type { SessionLog } from "../ports/session-log.ts";
import type { SessionTokens } from "../ports/session-tokens.ts";
import type { AcquiredLease } from "../store/leases.ts";
import { LOG_MESSAGE_BYTES } from "./limits.ts";

export interface AssignmentDeps {
  readonly sessionLog: Pick<SessionLog, "readTail">;
  readonly sessions: SessionDirectory;
  readonly hands: Pick<HandControl, "slotTools">;
  readonly tokens: Pick<SessionTokens, "issue">;
  readonly proxies: Pick<ProxyDirectory, "any">;
}

type SlotTools = Awaited<ReturnType<HandControl["slotTools"]>>;

export interface ForeseenAssignment {
  readonly session: Promise<SessionView>;
  readonly slots: Promise<SlotTools>;
}

/**
 * Begins to read; what fails is told where it is used. Only for who is about to take the lease: which tools the session's hands
 * have is settled here, by the hand agents that are there now.
 */
export function foreseeAssignment(
  { sessions, hands }: AssignmentDeps,
  sessionId: string,
): ForeseenAssignment {
  const session = sessions.get(sessionId);
  const slots = session.then((view) => hands.slotTools(view));
  // Not used when somebody else takes the lease.
  for (const read of [session, slots]) read.catch(() => {});
  return { session, slots };
}

export async function completeAssignment(
  { sessionLog, sessions, tokens, proxies }: AssignmentDeps,
  lease: AcquiredLease,
  foreseen: ForeseenAssignment,
): Promise<Assignment> {
  const { sessionId, workspaceId, epoch, head } = lease;
  const [session, tail, slots, sessionToken] = await Promise.all([
    // What changed before the lease was taken, and is in the log, counts for this turn.
    foreseen.session.then((view) => (view.message.head === head ? view : sessions.get(sessionId))),
    sessionLog.readTail({ sessionId, maxBytes: LOG_MESSAGE_BYTES }),
    foreseen.slots,
    tokens.issue({ sessionId, workspaceId, epoch }),
  ]);
  const proxy = proxies.any();
  return create(AssignmentSchema, {
    lease: create(LeaseProofSchema, { leaseId: lease.leaseId, epoch }),
    expiresAt: timestampFromDate(lease.expiresAt),
    session: session.message,
    tail: tail.events,
    slots: slots.map(({ slot, digest, tools }) =>
      create(SlotToolsSchema, {
        slot,
        digest,
        tools: tools.map((tool) => create(ToolDescriptionSchema, tool)),
      }),
    ),
    proxyUrl: proxy.url,
    webTools: proxy.web,
    sessionToken: sessionToken.token,
    silentDeaths: lease.silentDeaths,
  });
}
