/** A thread as existing clients know it (pure). A session's own log is its primary thread, under an id made of the session's. */
import type { Session } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { threadAgentJson } from "../agents/agent-json.ts";
import { durationSeconds, statusJson, usageJson } from "../sessions/session-json.ts";
import { timeJson } from "../time-json.ts";

const SESSION = "sesn_";
const THREAD = "sthr_";

export function primaryThreadId(sessionId: string): string {
  return `${THREAD}${sessionId.slice(SESSION.length)}`;
}

export function threadJson(thread: Session, nowMs: number) {
  const root = thread.rootSessionId || thread.id;
  const isPrimary = thread.rootSessionId === "";
  return {
    type: "session_thread",
    id: isPrimary ? primaryThreadId(thread.id) : thread.id,
    session_id: root,
    parent_thread_id: isPrimary ? null : parentId(thread.parentSessionId),
    workflow_run_id: null,
    agent: threadAgentJson(thread.agent!),
    title: thread.title || null,
    status: statusJson(thread),
    stats: {
      active_seconds: Number(thread.usage?.activeMs ?? 0n) / 1000,
      duration_seconds: durationSeconds(thread, nowMs),
      startup_seconds: 0,
    },
    usage: usageJson(thread.usage),
    created_at: timeJson(thread.createdAt),
    updated_at: timeJson(thread.updatedAt),
    archived_at: timeJson(thread.archivedAt),
  };
}

function parentId(sessionId: string): string {
  return sessionId.startsWith(SESSION) ? primaryThreadId(sessionId) : sessionId;
}
