/** Who may work on a hand by itself: the brain of its session, an admin who says why, or, outside sessions, its workspace. */
import { notFound, TendonError } from "../../kit/errors.ts";
import type { LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { actorOf, maySee, type Principal } from "../ports/principal.ts";
import type { HandRecord, HandStore, LeaseClaim } from "../store/hands.ts";
import { leaseOf, needsSession } from "./lease-claim.ts";

export interface HandAccess {
  readonly lease: LeaseClaim | undefined;
  /** Set for who is not the session's brain: its log is told. */
  readonly operator: { readonly actor: string; readonly reason: string } | undefined;
}

/** NOT_FOUND also for what belongs to others. */
export async function visibleHand(
  hands: Pick<HandStore, "find">,
  handId: string,
  principal: Principal,
): Promise<HandRecord> {
  const hand = await hands.find(handId);
  if (hand === undefined || !maySee(principal, hand.workspaceId)) throw notFound("hand", handId);
  return hand;
}

/** ROLE_NOT_ALLOWED, INVALID_FIELD. The lease itself is compared where it counts, in the store. */
export function accessTo(
  hand: HandRecord,
  { lease, reason }: { lease?: LeaseProof | undefined; reason: string },
  principal: Principal,
): HandAccess {
  if (hand.sessionId === undefined) {
    if (principal.kind === "harness") throw needsSession();
    return { lease: undefined, operator: undefined };
  }
  const claim = leaseOf(principal, lease);
  if (claim !== undefined) return { lease: claim, operator: undefined };
  checkOperator(principal, reason);
  return { lease: undefined, operator: { actor: actorOf(principal), reason } };
}

export function checkOperator(principal: Principal, reason: string): void {
  if (principal.kind !== "admin") {
    throw new TendonError(
      "ROLE_NOT_ALLOWED",
      "only the session's brain, or an admin who gives a reason, may use a session's hand",
    );
  }
  if (reason === "") {
    throw new TendonError(
      "ROLE_NOT_ALLOWED",
      "reason: say why you work on a session's hand; its log keeps it",
    );
  }
}
