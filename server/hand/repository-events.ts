/** What the log and the model are told of repositories that a hand did not get. The session goes on without them. */
import type { RepositoryOutcome } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandEvent } from "../store/hands.ts";

const KINDS = ["authentication", "forbidden", "not_found", "checkout", "clone"];
const PARTS = ["server", "tunnel", "hand_agent", "sandbox", "proxy", "upstream"];
const MAX_NOTICE_CHARS = 4_000;

/** One event for each. `retrying` is the field's word for a failure that stops nothing: the next hand tries again. */
export function repositoryErrors(outcomes: readonly RepositoryOutcome[]): HandEvent[] {
  return failedOf(outcomes).map(({ url, failure, message, part }) => {
    // A newer agent's word counts as the most general one.
    const kind = KINDS.includes(failure) ? failure : "clone";
    const error = {
      type: `repository_${kind}_error`,
      message,
      repository_url: url,
      retry_status: { type: "retrying" },
      part: PARTS.includes(part) ? part : "hand_agent",
      reason: `REPOSITORY_${kind.toUpperCase()}`,
    };
    return { type: "session.error", payload: JSON.stringify({ error }) };
  });
}

/** For the result of the hand's first call; empty when all are there. */
export function repositoryNotice(outcomes: readonly RepositoryOutcome[]): string {
  const failed = failedOf(outcomes);
  if (failed.length === 0) return "";
  const lines = failed.map(({ url, message }) => `- ${url}: ${message}`);
  return `Note: not all repositories are here.\n${lines.join("\n")}`.slice(0, MAX_NOTICE_CHARS);
}

function failedOf(outcomes: readonly RepositoryOutcome[]): RepositoryOutcome[] {
  return outcomes.filter(({ failure }) => failure !== "");
}
