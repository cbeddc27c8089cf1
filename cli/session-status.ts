/** What a session does, in words. */
import {
  type Session,
  SessionStatus,
  SessionStatusSchema,
  StopReason,
  StopReasonSchema,
} from "../proto/gen/tendon/v1/session_pb.js";
import { enumWord } from "./words.ts";

/** What was said waits for something else then. */
const RESTS_WITH_WORK: readonly StopReason[] = [
  StopReason.REQUIRES_ACTION,
  StopReason.WAITING_FOR_THREADS,
  StopReason.BUDGET_REACHED,
];

export function statusText(status: SessionStatus, stopReason: number): string {
  const word = enumWord(SessionStatusSchema, status);
  const reason = enumWord(StopReasonSchema, stopReason);
  return status === SessionStatus.IDLE && reason !== "" ? `${word} (${reason})` : word;
}

/** With the word that nothing works yet on what was said, and what that may need. */
export function statusWithWork(session: Session): string {
  const { status, stopReason, hasWork } = session;
  const text = statusText(status, stopReason);
  if (status !== SessionStatus.IDLE || !hasWork || RESTS_WITH_WORK.includes(stopReason)) return text;
  const loop = session.agent?.spec?.loop || "claude";
  return `${text}; what was said waits for a harness with the loop "${loop}"`;
}
