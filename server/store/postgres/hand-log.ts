/** How the nouns of hands write to a session's log inside their own transactions. */
import { newId } from "../../../kit/ids.ts";
import type { HandEvent } from "../hands.ts";
import type { LogAdvance } from "../session-append.ts";
import { appendWithin } from "./append-within.ts";
import type { Transaction } from "./transaction.ts";

export interface HandLogEntry {
  readonly advance: LogAdvance;
  /** Position of the event, or of the answer that its call had already. */
  readonly position: number;
}

/** Appends one event as the server itself, also to an archived session: what happened has happened. NOT_FOUND. */
export async function appendToLog(
  transaction: Transaction,
  sessionId: string,
  event: HandEvent,
): Promise<HandLogEntry> {
  const { advance, receipts } = await appendWithin(transaction, {
    sessionId,
    authority: "server",
    events: [
      { id: newId("event"), type: event.type, threadId: "", payload: event.payload, internal: undefined },
    ],
  });
  return { advance, position: receipts[0]!.position };
}
