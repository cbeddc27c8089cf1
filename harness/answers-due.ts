/** When somebody has to look again at calls that wait for clients. Pure. */
import type { SessionState } from "./session-state.ts";

/** When the first of them has waited long enough, as far as this clock can tell; nothing where none has a bound. */
export function answersDue(
  { announcedCalls, announcedAtMs, openCalls }: SessionState,
  nowMs: number,
): { answersDueAfterMs?: number } {
  const calls = [...openCalls.values()].filter(({ eventId }) => announcedCalls?.has(eventId));
  const timeouts = calls.map((call) => call.answerTimeoutMs).filter((ms) => ms > 0);
  if (timeouts.length === 0) return {};
  const waitedMs = announcedAtMs === undefined ? 0 : nowMs - announcedAtMs;
  return { answersDueAfterMs: Math.max(0, Math.min(...timeouts) - Math.max(0, waitedMs)) };
}
