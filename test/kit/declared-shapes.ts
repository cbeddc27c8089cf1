/** Whether all that a server has to say of its sessions is what the official client declares. */
import type Anthropic from "@anthropic-ai/sdk";
import { faultsOf, wordsOf } from "./sdk-types.ts";

const EVENT = "BetaManagedAgentsSessionEvent";
/** What Tendon says besides, and clients' own types. */
const BESIDES = /^(?!agent\.|session\.|span\.|user\.|system\.|workflow_run\.)|^session\.forked$/;

export function eventFaults(event: { readonly type: string }): string[] {
  if (!wordsOf(EVENT).has(event.type) && BESIDES.test(event.type)) return [];
  return faultsOf(EVENT, event).map((fault) => `${event.type}: ${fault.replace(`${EVENT}.`, "")}`);
}

/** Of all sessions that the client's key may see, with their threads and all events, each fault once. */
export async function sessionFaults(client: Anthropic): Promise<string[]> {
  const found = new Set<string>();
  const add = (faults: readonly string[]) => {
    for (const fault of faults) found.add(fault);
  };
  const { sessions } = client.beta;
  for await (const session of sessions.list({ include_archived: true, limit: 100 })) {
    add(faultsOf("BetaManagedAgentsSession", session));
    for await (const event of sessions.events.list(session.id)) add(eventFaults(event));
    for await (const thread of sessions.threads.list(session.id)) {
      add(faultsOf("BetaManagedAgentsSessionThread", thread));
      if (thread.parent_thread_id === null) continue;
      const events = sessions.threads.events.list(thread.id, { session_id: session.id });
      for await (const event of events) add(eventFaults(event));
    }
  }
  return [...found];
}
