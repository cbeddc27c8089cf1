/** Who works on a hand: what its owner or an operator begins, and how it passes from session to session (H6). */
import { invalidField, notFound, TendonError } from "../../../kit/errors.ts";
import type { HandRecord, HandStore } from "../hands.ts";
import type { LogAdvance } from "../session-append.ts";
import { LIVING_HANDS } from "./hand-agents.ts";
import { appendToLog } from "./hand-log.ts";
import { hasOpenExecution, lockHand, lockSession, write } from "./hands.ts";
import type { Pool } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

export function owners(pool: Pool): Pick<HandStore, "operate" | "handOver" | "raiseOwner"> {
  return {
    operate: (request) => inTransaction(pool, (transaction) => operate(transaction, request)),
    async raiseOwner(handId, ownerNumber) {
      await pool.query("update hands set owner_number = greatest(owner_number, $2) where hand_id = $1", [
        handId,
        ownerNumber,
      ]);
    },
    handOver: (request) => inTransaction(pool, (transaction) => handOver(transaction, request)),
  };
}

async function operate(
  transaction: Transaction,
  { hand: seen, lease, event }: Parameters<HandStore["operate"]>[0],
): ReturnType<HandStore["operate"]> {
  const hand = await lockHand(transaction, seen.handId, lease);
  if (hand?.state !== "ready" || hand.sessionId !== seen.sessionId) return undefined;
  const used = await write(transaction, hand.handId, "last_used_at = clock_timestamp()", []);
  const entry =
    event === undefined || hand.sessionId === undefined
      ? undefined
      : await appendToLog(transaction, hand.sessionId, event);
  return { hand: used, advance: entry?.advance };
}

type HandOverRequest = Parameters<HandStore["handOver"]>[0];
type HandedOver = Awaited<ReturnType<HandStore["handOver"]>>;

/** Both sessions' rows are locked, in the order of their ids; then the hand's. The logs are written in that order too. */
async function handOver(transaction: Transaction, request: HandOverRequest): Promise<HandedOver> {
  const { hand: seen, toSessionId, toSlot, claim } = request;
  const { handId, workspaceId, sessionId: fromSessionId, slot: fromSlot } = seen;
  const ownerNumber = seen.ownerNumber + 1;
  const subjectId = `${handId} ${ownerNumber}`;
  const scope = { workspaceId, scope: "hand over", subjectId };
  const first = await claimRequestId(transaction, { ...claim, ...scope });
  if (first !== undefined) return repeated(transaction, request, first);
  request.check();
  await lockSessions(transaction, request);
  const hand = await lockHand(transaction, handId);
  if (hand === undefined) throw notFound("hand", handId);
  if (hand.ownerNumber !== seen.ownerNumber || hand.sessionId !== fromSessionId) {
    throw new TendonError(
      "VERSION_MISMATCH",
      `hand "${handId}" was just handed over by somebody else; look again`,
    );
  }
  await checkFree(transaction, hand, request);
  const given = await write(
    transaction,
    handId,
    `session_id = $2, slot = $3, owner_number = $4, of_session = true, notice = $5, last_used_at = clock_timestamp()`,
    [toSessionId, toSlot, ownerNumber, request.notice],
  );
  const facts = { handId, ownerNumber, fromSessionId, fromSlot, toSessionId, toSlot };
  const logs = [toSessionId, ...(fromSessionId === undefined ? [] : [fromSessionId])].sort();
  const advances: LogAdvance[] = [];
  for (const sessionId of logs) {
    const event = sessionId === toSessionId ? request.received(facts) : request.given(facts);
    advances.push((await appendToLog(transaction, sessionId, event)).advance);
  }
  return { hand: given, advances };
}

/** What the first answer said, whatever has become of the hand since. */
async function repeated(
  transaction: Transaction,
  { hand, toSessionId, toSlot }: HandOverRequest,
  subjectId: string,
): Promise<HandedOver> {
  const now = (await lockHand(transaction, hand.handId)) ?? hand;
  const ownerNumber = Number(subjectId.split(" ")[1]);
  return { hand: { ...now, sessionId: toSessionId, slot: toSlot, ownerNumber }, advances: [] };
}

async function lockSessions(
  transaction: Transaction,
  { hand, toSessionId, lease }: HandOverRequest,
): Promise<void> {
  const ids = [toSessionId, ...(hand.sessionId === undefined ? [] : [hand.sessionId])].sort();
  for (const sessionId of ids) {
    const gives = sessionId === hand.sessionId;
    const session = await lockSession(transaction, sessionId, gives ? lease : undefined);
    if (gives) continue;
    if (session.workspace_id !== hand.workspaceId) throw notFound("session", sessionId);
    if (session.archived) {
      throw new TendonError("SESSION_ARCHIVED", `session "${sessionId}" is archived; it takes no hands`);
    }
    await checkHasOwnHands(transaction, sessionId);
  }
}

/** A thread that works in its tree's hands would never come to a hand of its own. */
async function checkHasOwnHands(transaction: Transaction, sessionId: string): Promise<void> {
  const { rows } = await transaction.query<{ owner: string | null }>(
    "select hands_session_id as owner from sessions where session_id = $1",
    [sessionId],
  );
  const owner = rows[0]?.owner ?? undefined;
  if (owner === undefined) return;
  throw invalidField("to_session_id", `session "${sessionId}" works in the hands of session "${owner}"`);
}

/** The hand can be given away now, and the slot can take it. */
async function checkFree(
  transaction: Transaction,
  hand: HandRecord,
  { toSessionId, toSlot }: HandOverRequest,
): Promise<void> {
  const named = `hand "${hand.handId}"`;
  switch (hand.state) {
    case "released":
      throw new TendonError("HAND_RELEASED", `${named} was released`);
    case "lost":
      throw new TendonError("HAND_LOST", `${named} is lost: ${hand.stateDetail}`);
    case "provisioning":
      throw new TendonError("HAND_NOT_READY", `${named} is still being made`);
    default:
      if (await hasOpenExecution(transaction, hand)) {
        throw new TendonError("HAND_NOT_READY", `a call runs in ${named}; cancel it, or wait for its end`);
      }
  }
  const { rows } = await transaction.query<{ hand_id: string }>(
    `select hand_id from hands where session_id = $1 and slot = $2 and ${LIVING_HANDS}`,
    [toSessionId, toSlot],
  );
  if (rows[0] !== undefined) {
    throw new TendonError(
      "SLOT_OCCUPIED",
      `session "${toSessionId}" has the hand "${rows[0].hand_id}" in the slot "${toSlot}"`,
      { hand_id: rows[0].hand_id },
    );
  }
}
