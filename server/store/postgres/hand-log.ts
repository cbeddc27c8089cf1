/** How the nouns of hands write to a session's log inside their own transactions. */
import { newId } from "../../../kit/ids.ts";
import type { HandEvent } from "../hands.ts";
import type { LogAdvance } from "../session-append.ts";
import { appendWithin } from "./append-within.ts";
import type { Transaction } from "./transaction.ts";

export interface HandLogEntry {
  readonly advance: LogAdvance;
  /** Position of the first event, or of the answer that its call had already. */
  readonly position: number;
}

/** Appends as the server itself, also to an archived session: what happened has happened. At least one event. NOT_FOUND. */
export async function appendToLog(
  transaction: Transaction,
  sessionId: string,
  ...events: readonly HandEvent[]
): Promise<HandLogEntry> {
  const { advance, receipts } = await appendWithin(transaction, {
    sessionId,
    authority: "server",
    events: events.map(({ type, payload }) => ({
      id: newId("event"),
      type,
      threadId: "",
      payload,
      internal: undefined,
    })),
  });
  return { advance, position: receipts[0]!.position };
}
