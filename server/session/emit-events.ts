/** Appends what somebody says: a brain with its lease, or a client, whose words get beside them what a brain needs to know. */
import { isTendonError } from "../../kit/errors.ts";
import { isId } from "../../kit/ids.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import { formatTraceParent, traceOf } from "../../kit/trace.ts";
import type { EmitEventsRequest } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { FileAttachments } from "../ports/files.ts";
import { principalOf } from "../ports/principal.ts";
import type { BudgetStore } from "../store/budgets.ts";
import type { NewEvent } from "../store/events.ts";
import type { ThreadStore } from "../store/threads.ts";
import { appendClientEvents, type ClientAppendDeps } from "./append-client-events.ts";
import { checkBudget } from "./budget-check.ts";
import type { GivenFiles } from "./given-files.ts";
import type { Hub } from "./hub.ts";
import { announceAppended } from "./log.ts";
import { withRubrics } from "./outcome-definitions.ts";
import { toReceipt } from "./receipt.ts";
import { checkEmit, isBound } from "./rules.ts";
import { addressEvents } from "./thread-addressing.ts";
import type { TreeRelay } from "./tree-relay.ts";
import { isWorker } from "./worker-view.ts";

export interface EmitDeps extends ClientAppendDeps {
  readonly budgets: BudgetStore;
  readonly files: FileAttachments;
  readonly threads: ThreadStore;
  readonly hub: Hub;
  readonly relay: () => Pick<TreeRelay, "relay">;
}

interface Caller {
  readonly context: RpcContext;
  readonly workspaceId: string;
  /** Closed by the caller. */
  readonly given: GivenFiles;
}

export async function emitEvents(deps: EmitDeps, request: EmitEventsRequest, caller: Caller) {
  const { context } = caller;
  const { sessionId, expectedPosition, lease } = request;
  const { authority, events: checked } = checkEmit(principalOf(context), request.events, lease);
  if (authority === "brain") await checkBudget(deps.budgets, sessionId, checked);
  if (authority === "client" && isId("thread", sessionId)) await hearAbove(deps, sessionId);
  const addressed = authority === "client" ? await addressEvents(deps.threads, sessionId, checked) : checked;
  let events = addressed;
  try {
    if (authority === "client") events = await withFiles(deps, sessionId, addressed, caller);
  } catch (error) {
    // A file may be gone since the same events were appended, and a repeat is answered all the same.
    const repeat = isTendonError(error) && (await deps.events.repeated(sessionId, addressed));
    if (!repeat) throw error;
    return { receipts: repeat.receipts.map(toReceipt), head: BigInt(repeat.head) };
  }
  const append = {
    sessionId,
    events,
    authority,
    expectedPosition,
    lease: lease && { leaseId: lease.leaseId, epoch: lease.epoch },
    traceParent: authority === "client" ? traceParentOf(context) : undefined,
  };
  const appended =
    authority === "client"
      ? await appendClientEvents(deps, append, isWorker(principalOf(context)))
      : await deps.events.append(append);
  announceAppended(deps.hub, sessionId, appended, lease?.leaseId);
  // Not waited for: the client's word is in the log, and what is lost here is found within a second.
  if (events.some(({ type, threadId }) => threadId !== "" || type === "user.interrupt"))
    void deps.relay().relay(sessionId);
  return { receipts: appended.receipts.map(toReceipt), head: BigInt(appended.head) };
}

/**
 * What the logs above a thread were told before is told to the thread first, however soon somebody speaks to it: a stop would
 * take what was said after it for something that waited, and hold it.
 */
async function hearAbove(
  { threads, relay }: Pick<EmitDeps, "threads" | "relay">,
  threadId: string,
): Promise<void> {
  const above: string[] = [];
  for (let id = (await threads.place(threadId))?.parentSessionId; id !== undefined; ) {
    above.unshift(id);
    id = (await threads.place(id))?.parentSessionId;
  }
  for (const id of above) await relay().relay(id);
}

/** Each with what a brain needs beside it. */
async function withFiles(
  { files }: Pick<EmitDeps, "files">,
  sessionId: string,
  addressed: readonly NewEvent[],
  { context, workspaceId, given }: Caller,
): Promise<NewEvent[]> {
  const events = await withRubrics(files, addressed, { workspaceId, sessionId });
  // Naming a file must not show it to a key that does not open it otherwise.
  return isBound(principalOf(context)) ? events : given.beside(events, workspaceId);
}

export function traceParentOf(context: RpcContext): string | undefined {
  const trace = traceOf(context);
  return trace && formatTraceParent(trace);
}
