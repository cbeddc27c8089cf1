/**
 * Finds calls that are bound to an agent which is connected here and that it was never told of: whoever bound them died
 * before it sent them, or sent them into a connection that had ended. The same goes for requests to stop a call.
 */
import type { AgentConnections } from "./agent-connections.ts";
import type { HandDeps } from "./deps.ts";
import { startMessage, stopMessage } from "./execution-messages.ts";

/** Newest first: what was left behind is new, and what runs for long is known. */
const MAX_LOOKED_AT = 2_000;

export async function sendUnsentCalls(deps: HandDeps, connections: AgentConnections): Promise<void> {
  const { store, replicaId, timing } = deps;
  if (connections.all().length === 0) return;
  const open = await store.executions.openAt({
    replicaId,
    boundForMs: timing.unsentAfterMs,
    limit: MAX_LOOKED_AT,
  });
  for (const { executionKey, handAgentId, stopReason } of open) {
    const untold = () => {
      const connection = connections.find(handAgentId);
      if (connection === undefined) return undefined;
      const needsStop = stopReason !== undefined && !connection.hasTold("stop", executionKey);
      return connection.hasTold("start", executionKey) && !needsStop ? undefined : connection;
    };
    if (untold() === undefined) continue;
    // Read after the connection stands: a call that this agent has ended and forgotten has its result by now (X1).
    const execution = await store.executions.find(executionKey);
    const connection = untold();
    if (execution === undefined || execution.result !== undefined) continue;
    if (connection === undefined || execution.journalId !== connection.journalId) continue;
    if (execution.stopReason !== undefined) connection.post(stopMessage(execution, execution.stopReason));
    connection.post(startMessage(execution));
  }
}
