/** ThreadService: parse → decide → store → answer. */
import { toJsonString } from "@bufbuild/protobuf";
import { isTendonError, notFound, TendonError } from "../../kit/errors.ts";
import { isId, isSessionId, newId } from "../../kit/ids.ts";
import { refuseNul } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { type Agent, AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type CreateThreadRequest,
  type ListThreadsRequest,
  type SendToThreadRequest,
  type StopThreadRequest,
  type StopTreeRequest,
  ThreadHands,
  type ThreadService,
  type WaitForThreadsRequest,
  type WaitForTreeRequest,
} from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { maySee, type Principal, principalOf } from "../ports/principal.ts";
import { toSessionMessage } from "../ports/session-message.ts";
import type { AgentSkills } from "../ports/skills.ts";
import type { AgentStore } from "../store/agents.ts";
import type { Cursor } from "../store/page.ts";
import type { SessionRecord, SessionStore } from "../store/sessions.ts";
import type { ThreadStore, TreeAppend, TreePlace } from "../store/threads.ts";
import { receivedEvent, sentEvent } from "../store/tree-events.ts";
import type { Hub } from "./hub.ts";
import { announceAppended } from "./log.ts";
import { agentOfThread, boundsOfTree, type CalledAgent, calledAgent } from "./thread-rules.ts";
import type { TreeRelay } from "./tree-relay.ts";

export interface ThreadServiceDeps {
  readonly threads: ThreadStore;
  readonly sessions: Pick<SessionStore, "find" | "standing">;
  readonly agents: Pick<AgentStore, "find">;
  readonly skills: Pick<AgentSkills, "pinMembers">;
  readonly hub: Hub;
  readonly relay: TreeRelay;
  /** Ends a thread and those below it for good. */
  readonly stopThread: (threadId: string) => Promise<void>;
  /** Interrupts a tree, from here down. */
  readonly stopTree: (sessionId: string) => Promise<string[]>;
}

const DEFAULT_WAIT_MS = 24 * 3_600_000;
const DEFAULT_PAGE = 100;

export class ThreadServiceHandler implements ServiceImplementation<typeof ThreadService> {
  private readonly deps: ThreadServiceDeps;

  constructor(deps: ThreadServiceDeps) {
    this.deps = deps;
  }

  async createThread(request: CreateThreadRequest, context: RpcContext) {
    const { sessionId, requestId, title } = request;
    refuseNul(requestId, "request_id");
    refuseNul(title, "title");
    const parent = await this.find(sessionId, context);
    try {
      return await this.newThread(parent, request, context);
    } catch (error) {
      // A call is run again after a crash, and what it names may be gone since it was run first.
      const first = isTendonError(error) && (await this.deps.threads.madeBefore(sessionId, requestId));
      if (!first) throw error;
      return { thread: toSessionMessage(first) };
    }
  }

  private async newThread(parent: SessionRecord, request: CreateThreadRequest, context: RpcContext) {
    const { sessionId, requestId, title, message, hands } = request;
    const root = parent.rootSessionId === undefined ? parent : await this.find(parent.rootSessionId, context);
    const { depth } = await this.place(sessionId, context);
    const bounds = boundsOfTree(root, depth);
    const member = calledAgent(parent, request.agent, await this.memberNames(parent));
    const found = agentOfThread(parent, member, await this.memberAgent(parent.workspaceId, member));
    const agent = member === "self" ? found : await this.withMembersPinned(found, parent.workspaceId);
    const made = await this.deps.threads.create({
      threadId: newId("thread"),
      parentSessionId: sessionId,
      lease: leaseOf(request),
      callId: requestId,
      agentId: agent.id,
      agentVersion: agent.version,
      agent: toJsonString(AgentSchema, agent),
      agentName: agent.spec?.name ?? "",
      title,
      message,
      ownHands: hands === ThreadHands.OWN,
      ...bounds,
    });
    this.announce(made.appends);
    return { thread: toSessionMessage(made.thread) };
  }

  async sendToThread(request: SendToThreadRequest, context: RpcContext) {
    const { sessionId, requestId, threadId, message } = request;
    refuseNul(requestId, "request_id");
    const from = await this.place(sessionId, context);
    const to = threadId === "" ? from.parentSessionId : threadId;
    if (to === undefined) throw notFound("parent of the session", sessionId);
    const target = await this.place(to, context);
    const isOwn = target.parentSessionId === sessionId || from.parentSessionId === to;
    if (!isOwn) throw notFound("thread of the session", to);
    const said = { causeId: requestId, content: [{ type: "text", text: message }], from, to: target };
    const toChild = target.parentSessionId === sessionId;
    const appends = await this.deps.threads.send({
      from: sessionId,
      lease: leaseOf(request),
      to,
      sent: sentEvent(said),
      received: receivedEvent(said, toChild ? { from_parent: true } : {}),
    });
    this.announce(appends);
    return {};
  }

  async waitForThreads(request: WaitForThreadsRequest, context: RpcContext) {
    const { sessionId, callId, threadIds, any, timeoutMs } = request;
    refuseNul(threadIds, "thread_ids");
    await this.place(sessionId, context);
    const wait = await this.deps.threads.wait({
      sessionId,
      lease: leaseOf(request),
      callId,
      threadIds: [...new Set(threadIds)],
      any,
      timeoutMs: Number(timeoutMs) || DEFAULT_WAIT_MS,
    });
    // Committed before it is looked at: whoever comes to rest from now on finds the wait.
    const text = await this.deps.relay.settle(wait, "by text");
    return { pending: text === undefined, text: text ?? "" };
  }

  async waitForTree(request: WaitForTreeRequest, context: RpcContext) {
    const { sessionId, outcomeEventId } = request;
    refuseNul(outcomeEventId, "outcome_event_id");
    await this.place(sessionId, context);
    await this.deps.threads.waitForTree({ sessionId, lease: leaseOf(request), outcomeEventId });
    // Committed before it is looked at, as a call's wait is.
    const { isOver } = await this.deps.threads.endTreeWait(sessionId, undefined);
    return { pending: !isOver };
  }

  async listThreads(request: ListThreadsRequest, context: RpcContext) {
    const { sessionId, wholeTree, includeArchived, pageSize } = request;
    const { rootSessionId, parentSessionId } = await this.place(sessionId, context);
    const isWhole = wholeTree && parentSessionId === undefined;
    const query: PageQuery = ["threads", sessionId, isWhole, includeArchived];
    const { items, next } = await this.deps.threads.list({
      rootSessionId,
      parentSessionId: isWhole ? undefined : sessionId,
      includeArchived,
      size: pageSize || DEFAULT_PAGE,
      after: decodePageToken(query, request.pageToken, 2) as Cursor | undefined,
    });
    return {
      threads: items.map((item) => toSessionMessage(item)),
      nextPageToken: encodePageToken(query, next),
    };
  }

  async stopThread({ threadId, sessionId, lease }: StopThreadRequest, context: RpcContext) {
    const principal = principalOf(context);
    const thread = await this.place(threadId, context);
    if (thread.parentSessionId === undefined) throw notFound("thread", threadId);
    if (principal.kind === "harness") await this.checkParent(thread, sessionId, lease);
    await this.deps.stopThread(threadId);
    return { thread: toSessionMessage(await this.find(threadId, context)) };
  }

  async stopTree({ sessionId }: StopTreeRequest, context: RpcContext) {
    await this.place(sessionId, context);
    return { sessionIds: await this.deps.stopTree(sessionId) };
  }

  /** Only who made a thread ends it, by its lease (E1). */
  private async checkParent(
    thread: TreePlace,
    sessionId: string,
    lease: StopThreadRequest["lease"],
  ): Promise<void> {
    if (thread.parentSessionId !== sessionId) throw notFound("thread of the session", thread.sessionId);
    const standing = await this.deps.sessions.standing(sessionId);
    if (lease?.leaseId === standing?.leaseId && lease?.epoch === standing?.leaseEpoch) return;
    throw new TendonError("LEASE_FENCED", "lease: is not the session's newest", {
      epoch: String(standing?.leaseEpoch),
    });
  }

  private announce(appends: readonly TreeAppend[]): void {
    for (const { sessionId, appended } of appends) announceAppended(this.deps.hub, sessionId, appended);
  }

  private async memberAgent(
    workspaceId: string,
    member: Pick<CalledAgent, "id" | "version"> | "self",
  ): Promise<Agent | undefined> {
    if (member === "self") return undefined;
    const agent = await this.deps.agents.find(member.id, member.version);
    return agent?.workspaceId === workspaceId ? agent : undefined;
  }

  private async withMembersPinned(agent: Agent, workspaceId: string): Promise<Agent> {
    if (agent.spec?.multiagent === undefined) return agent;
    return { ...agent, spec: await this.deps.skills.pinMembers(agent.spec, workspaceId) };
  }

  /** Of the agents that the session's may call, by id. */
  private async memberNames(parent: SessionRecord): Promise<Map<string, string>> {
    const names = new Map<string, string>();
    for (const { kind } of toSessionMessage(parent).agent?.spec?.multiagent?.agents ?? []) {
      if (kind.case !== "agent") continue;
      const agent = await this.memberAgent(parent.workspaceId, kind.value);
      if (agent?.spec !== undefined) names.set(kind.value.id, agent.spec.name);
    }
    return names;
  }

  private async place(sessionId: string, context: RpcContext): Promise<TreePlace> {
    const place = isSessionId(sessionId) ? await this.deps.threads.place(sessionId) : undefined;
    if (place === undefined || !maySee(principalOf(context), place.workspaceId)) throw missing(sessionId);
    return place;
  }

  private async find(sessionId: string, context: RpcContext): Promise<SessionRecord> {
    const record = isSessionId(sessionId) ? await this.deps.sessions.find(sessionId) : undefined;
    if (record === undefined || !sees(principalOf(context), record)) throw missing(sessionId);
    return record;
  }
}

function sees(principal: Principal, { workspaceId }: SessionRecord): boolean {
  return maySee(principal, workspaceId);
}

function missing(sessionId: string): TendonError {
  return notFound(isId("thread", sessionId) ? "thread" : "session", sessionId);
}

function leaseOf({ lease }: { lease?: { leaseId: string; epoch: bigint } | undefined }) {
  return { leaseId: lease?.leaseId ?? "", epoch: lease?.epoch ?? 0n };
}
