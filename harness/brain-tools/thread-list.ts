/** `thread_list`: the threads that this one has made, and the agents that it may call. */
import type { AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type Session, SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import type { BrainTool } from "./brain-tool.ts";
import { CALL_WITHIN_MS } from "./thread-input.ts";

const MAX_THREADS = 200;

export const threadList: BrainTool = {
  name: "thread_list",
  description:
    "List the threads that you have made and how they stand, and the agents that you may call with thread_create.",
  inputSchema: `{"type":"object","properties":{"stopped":{"type":"boolean","description":"Also threads that were stopped."}}}`,
  async run(input, { server, sessionId, agent }, signal) {
    const request = { sessionId, includeArchived: input.stopped === true, pageSize: MAX_THREADS };
    const within = { signal, deadlineMs: CALL_WITHIN_MS };
    const { threads, nextPageToken } = await server.threads.listThreads(request, within);
    const lines = threads.map(threadLine);
    if (lines.length === 0) lines.push("There are no threads.");
    if (nextPageToken !== "") lines.push(`[There are more than ${MAX_THREADS}.]`);
    return { text: [...lines, membersLine(agent.spec)].join("\n") };
  },
};

function threadLine({ id, title, agent, status, stopReason, archivedAt }: Session): string {
  const name = title === "" ? "" : ` "${title}"`;
  const reason = status === SessionStatus.IDLE ? `, ${StopReason[stopReason].toLowerCase()}` : "";
  const state = archivedAt === undefined ? `${SessionStatus[status].toLowerCase()}${reason}` : "stopped";
  return `- ${id}${name} (agent "${agent?.spec?.name ?? ""}"): ${state}`;
}

function membersLine(spec: AgentSpec | undefined): string {
  const members = spec?.multiagent?.agents ?? [];
  const names = members.map(({ kind }) => (kind.case === "agent" ? kind.value.id : "self"));
  return names.length === 0 ? "You may call no agents." : `Agents that you may call: ${names.join(", ")}.`;
}
