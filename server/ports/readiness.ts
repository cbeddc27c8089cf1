/** What a platform needs to run a session; said the same way to people and to health checks. */
import type { Presence } from "../store/replicas.ts";

/** One line for each thing that is missing, with what to do about it. */
export function missingParts(presence: Pick<Presence, "harnesses" | "handAgentsOnline">): string[] {
  const missing: string[] = [];
  if (presence.harnesses.length === 0) {
    missing.push("no harness is connected: start one with `tendon harness`");
  }
  if (presence.handAgentsOnline === 0) {
    missing.push("no hand agent is online: start one with `tendon hand-agent run`");
  }
  return missing;
}
