/** What the log says about hands. */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { HandFile, RepositoryOutcome } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandEvent, HandOverFacts, HandRecord } from "../store/hands.ts";

export function provisionedEvent(
  hand: HandRecord,
  isolation: string,
  repositories: readonly RepositoryOutcome[] = [],
): HandEvent {
  const cloned = repositories.filter(({ failure }) => failure === "");
  return eventOf("hand.provisioned", {
    hand_id: hand.handId,
    slot: hand.slot,
    driver: hand.driver,
    isolation,
    environment_id: hand.environmentId,
    hand_agent_id: hand.handAgentId,
    ...(cloned.length > 0 && {
      repositories: cloned.map(({ url, path, commit }) => ({ repository_url: url, path, commit })),
    }),
  });
}

export function lostEvent(hand: HandRecord, detail: string, failure: FailureOrigin): HandEvent {
  return eventOf("hand.lost", { hand_id: hand.handId, slot: hand.slot, detail, failure });
}

export function parkedEvent(hand: HandRecord, detail: string): HandEvent {
  return eventOf("hand.parked", { hand_id: hand.handId, slot: hand.slot, detail });
}

export function releasedEvent(hand: HandRecord, detail: string, unused: boolean): HandEvent {
  const more = unused ? { unused } : {};
  return eventOf("hand.released", { hand_id: hand.handId, slot: hand.slot, detail, ...more });
}

/** For the log of the session that has given the hand away: it has none in the slot any more. */
export function givenEvent(facts: HandOverFacts): HandEvent {
  return eventOf("hand.handed_over", {
    hand_id: facts.handId,
    slot: facts.fromSlot,
    to_session_id: facts.toSessionId,
    to_slot: facts.toSlot,
    owner_number: facts.ownerNumber,
  });
}

/** For the log of the session that has got the hand; one from outside sessions has no `from_session_id`. */
export function receivedEvent(facts: HandOverFacts, hand: HandRecord): HandEvent {
  const { fromSessionId, fromSlot } = facts;
  const from = fromSessionId === undefined ? {} : { from_session_id: fromSessionId, from_slot: fromSlot };
  return eventOf("hand.handed_over", {
    hand_id: facts.handId,
    slot: facts.toSlot,
    ...from,
    owner_number: facts.ownerNumber,
    driver: hand.driver,
    environment_id: hand.environmentId,
    hand_agent_id: hand.handAgentId,
  });
}

/** What was left as output is a file of the session now. */
export function outputStoredEvent(hand: HandRecord, file: HandFile, fileId: string): HandEvent {
  return eventOf("hand.output_stored", { ...outputFacts(hand, file), file_id: fileId });
}

export function outputRefusedEvent(hand: HandRecord, file: HandFile, detail: string): HandEvent {
  const failure: FailureOrigin = { part: "server", reason: "OUTPUT_REFUSED" };
  return eventOf("hand.output_refused", { ...outputFacts(hand, file), detail, failure });
}

function outputFacts(hand: HandRecord, { path, sizeBytes, sha256 }: HandFile) {
  return { hand_id: hand.handId, slot: hand.slot, path, size_bytes: Number(sizeBytes), sha256 };
}

/** An operator worked on a session's hand; a long input is told by its beginning. */
export function operatedEvent(
  hand: HandRecord,
  operation: { actor: string; reason: string; executionId: string; name: string; input: string },
): HandEvent {
  return eventOf("hand.operated", {
    hand_id: hand.handId,
    slot: hand.slot,
    actor: operation.actor,
    reason: operation.reason,
    execution_id: operation.executionId,
    name: operation.name,
    input_text: operation.input.slice(0, MAX_OPERATED_INPUT_CHARS),
  });
}

const MAX_OPERATED_INPUT_CHARS = 4_000;

function eventOf(type: string, payload: Record<string, unknown>): HandEvent {
  return { type, payload: JSON.stringify(payload) };
}
