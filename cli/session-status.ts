/** What a session does, in words. */
import { SessionStatus, SessionStatusSchema, StopReasonSchema } from "../proto/gen/tendon/v1/session_pb.js";
import { enumWord } from "./words.ts";

export function statusText(status: SessionStatus, stopReason: number): string {
  const word = enumWord(SessionStatusSchema, status);
  const reason = enumWord(StopReasonSchema, stopReason);
  return status === SessionStatus.IDLE && reason !== "" ? `${word} (${reason})` : word;
}
