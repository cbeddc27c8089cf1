/** `tendon start --once`: one session, shown as it happens. */
import { CALL_WITHIN } from "../command.ts";
import { showOn } from "../commands/session-log.ts";
import type { Api } from "../connect.ts";
import type { Output } from "../output.ts";
import { followTurn } from "../turn.ts";
import { userMessage } from "../user-events.ts";

/** 0 when the session came to rest at the end of a turn, else 1. */
export async function runOnce(
  api: Api,
  agentId: string,
  text: string,
  output: Output,
  { signal, isVerbose }: { signal: AbortSignal; isVerbose: boolean },
): Promise<number> {
  const { session } = await api.sessions.createSession(
    { agentId, initialEvents: [userMessage(text)] },
    CALL_WITHIN,
  );
  const show = showOn(output, true, isVerbose ? "all" : "work");
  const request = { sessions: api.sessions, sessionId: session!.id, after: 0n, signal };
  const { reason } = await followTurn(request, show);
  return reason === "end_turn" ? 0 : 1;
}
