/** Passes hands from session to session (H6). */
import { create } from "@bufbuild/protobuf";
import { contentHash } from "../../kit/canonical-json.ts";
import { invalidField, notFound, type TendonError } from "../../kit/errors.ts";
import { type HandOverRequest, HandOverRequestSchema } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { maySee, type Principal } from "../ports/principal.ts";
import type { HandRecord } from "../store/hands.ts";
import type { AgentLinks } from "./agent-link.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import { visibleHand } from "./hand-access.ts";
import { givenEvent, receivedEvent } from "./hand-events.ts";
import { leaseOf, needsSession } from "./lease-claim.ts";
import { checkSlot } from "./rules.ts";

/** For the first call of the session that has got the hand: the brain may not have read the log's word of it. */
const NOTICE_AFTER_RECEIVING =
  "Note: this environment was handed over to this session with its files and running processes. It holds nothing that earlier calls of this session may have left elsewhere.";

export class HandOvers {
  private readonly deps: HandDeps;
  private readonly links: AgentLinks;
  private readonly conclusions: Conclusions;

  constructor(deps: HandDeps, parts: { links: AgentLinks; conclusions: Conclusions }) {
    this.deps = deps;
    this.links = parts.links;
    this.conclusions = parts.conclusions;
  }

  async handOver(request: HandOverRequest, principal: Principal): Promise<HandRecord> {
    const { requestId, toSessionId, toSlot } = request;
    checkSlot(toSlot, "to_slot");
    const { hands } = this.deps.store;
    const hand = await visibleHand(hands, request.handId, principal);
    const workspaceId = await hands.workspaceOfSession(toSessionId);
    const isThere = workspaceId === hand.workspaceId && maySee(principal, workspaceId);
    const lease = leaseOf(principal, request.lease);
    const content = create(HandOverRequestSchema, { handId: hand.handId, toSessionId, toSlot });
    const handedOver = await hands.handOver({
      hand,
      toSessionId,
      toSlot,
      lease,
      claim: { requestId, contentHash: contentHash(HandOverRequestSchema, content) },
      check: () => {
        if (!isThere) throw notFound("session", toSessionId);
        if (hand.sessionId === undefined && principal.kind === "harness") throw needsSession();
        if (hand.sessionId === toSessionId) throw alreadyThere(hand);
      },
      notice: NOTICE_AFTER_RECEIVING,
      given: givenEvent,
      received: (facts) => receivedEvent(facts, hand),
    });
    for (const advance of handedOver.advances) this.conclusions.announce(advance);
    if (handedOver.advances.length > 0) await this.tellAgent(handedOver.hand);
    return handedOver.hand;
  }

  /** Lossy: every call of the new owner says it too, and so does the server when the agent comes back. */
  private async tellAgent({ handId, handAgentId, ownerNumber }: HandRecord): Promise<void> {
    const link = await this.links.locate(handAgentId ?? "").catch(() => undefined);
    link?.post({ case: "ownerChanged", value: { handId, ownerNumber: BigInt(ownerNumber) } });
  }
}

function alreadyThere({ handId, sessionId, slot }: HandRecord): TendonError {
  return invalidField(
    "to_session_id",
    `session "${sessionId}" has the hand "${handId}" already, in the slot "${slot}"`,
  );
}
