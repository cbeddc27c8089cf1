/** Logs as clients name them: by sessions, and by threads of sessions. */
import { isId } from "../../../../kit/ids.ts";
import type { Session } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import type { ServiceCaller } from "../service-caller.ts";
import { primaryThreadId } from "../threads/thread-json.ts";
import type { ToldLog } from "./thread-status.ts";

/** A thread's id is taken wherever a session's is. Its agent's name is read once somebody asks for it. */
export function logNamed(services: ServiceCaller, sessionId: string): ToldLog {
  const isThread = isId("thread", sessionId);
  let name: Promise<string> | undefined;
  return {
    sessionId,
    isThread,
    threadId: isThread ? sessionId : primaryThreadId(sessionId),
    agentName() {
      name ??= services
        .call(SessionService.method.getSession, { sessionId })
        .then(({ session }) => agentNameOf(session!));
      return name;
    },
  };
}

export function logOf(services: ServiceCaller, session: Session): ToldLog {
  return { ...logNamed(services, session.id), agentName: async () => agentNameOf(session) };
}

function agentNameOf({ agent }: Session): string {
  return agent?.spec?.name ?? "";
}
