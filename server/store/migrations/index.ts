/** The database's history, oldest first: one file per step, one line here. Steps are only ever added at the end. */
import { spine } from "./0001-spine.ts";
import { appendEvents } from "./0002-append-events.ts";
import { callsAtOnce } from "./0003-calls-at-once.ts";
import { logLife } from "./0004-log-life.ts";
import { parkedHands } from "./0005-parked-hands.ts";
import { sessionLoop } from "./0006-session-loop.ts";
import { tamperEvidence } from "./0007-tamper-evidence.ts";
import { brains } from "./0008-brains.ts";
import { handLives } from "./0009-hand-lives.ts";
import { memory } from "./0010-memory.ts";
import { threads } from "./0011-threads.ts";
import { traces } from "./0012-traces.ts";
import { vaults } from "./0013-vaults.ts";
import { speculativeHands } from "./0014-speculative-hands.ts";
import { mcpCalls } from "./0015-mcp-calls.ts";
import { files } from "./0016-files.ts";
import { workQueue } from "./0017-work-queue.ts";
import { webhooks } from "./0018-webhooks.ts";
import { deployments } from "./0019-deployments.ts";
import { webhookOutcomes } from "./0020-webhook-outcomes.ts";
import { sessionVaults } from "./0021-session-vaults.ts";
import { webTools } from "./0022-web-tools.ts";
import { deploymentVaults } from "./0023-deployment-vaults.ts";
import { webhookBounds } from "./0024-webhook-bounds.ts";
import { outcomeWaits } from "./0025-outcome-waits.ts";
import { webhookAsks } from "./0026-webhook-asks.ts";
import { workOver } from "./0027-work-over.ts";
import type { Migration } from "./migration.ts";

export type { Migration } from "./migration.ts";

export const migrations: readonly Migration[] = [
  spine,
  appendEvents,
  callsAtOnce,
  logLife,
  parkedHands,
  sessionLoop,
  tamperEvidence,
  brains,
  handLives,
  memory,
  threads,
  traces,
  vaults,
  speculativeHands,
  mcpCalls,
  files,
  workQueue,
  webhooks,
  deployments,
  webhookOutcomes,
  sessionVaults,
  webTools,
  deploymentVaults,
  webhookBounds,
  outcomeWaits,
  webhookAsks,
  workOver,
];
