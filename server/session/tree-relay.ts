/**
 * Passes on what one log of a tree has to say to another: how threads stand and what they ask clients goes to the root's log,
 * what clients answer there goes to the thread, an interrupt of the root to all threads, and what a thread says at the end of
 * a turn to who made it.
 *
 * T1 What is to be passed on is noted by the database with the event itself (migration 11); a note goes when all of it was
 *    said. So it is said whoever dies, and, because ids follow from what is said, once.
 * T2 Whoever interrupts a tree goes from the root down, and reads who is below only once all above have their interrupts:
 *    with one that waits nobody makes threads or sends messages, so none is missed.
 */
import type { Clock } from "../../kit/clock.ts";
import { isTendonError, messageOf } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import { ID_PREFIXES } from "../../kit/ids.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import { ANSWER_FIELDS } from "../store/event-facts.ts";
import type { EventStore, NewEvent } from "../store/events.ts";
import type { SessionStore } from "../store/sessions.ts";
import type { ThreadStore, TreeNews, TreePlace } from "../store/threads.ts";
import { derivedEventId, threadIdOf, treeEvent } from "../store/tree-events.ts";
import { budgetNotice } from "./budget-notice.ts";
import type { Hub } from "./hub.ts";
import { announceAppended } from "./log.ts";
import { OutcomeWaits } from "./outcome-waits.ts";
import { askNotice, goOnNotice } from "./thread-asks.ts";
import { reportOf } from "./thread-reports.ts";
import { ThreadWaits } from "./thread-waits.ts";

export interface TreeRelayDeps {
  readonly threads: ThreadStore;
  readonly events: Pick<EventStore, "append" | "read">;
  readonly sessions: Pick<SessionStore, "standing">;
  readonly hub: Hub;
  /** Ends a thread whose parent has ended. */
  readonly stopOrphan: (threadId: string) => Promise<void>;
  readonly clock: Clock;
  readonly log: Logger;
}

const NEWS_AT_ONCE = 100;
const POLL_EVERY_MS = 1_000;
const SESSIONS_PER_POLL = 200;
const ORPHANS_EVERY_POLLS = 2;
/** Appends of many sessions share commits; more at once would only wait in line. */
const AT_ONCE = 32;

const AT_BUDGET = JSON.stringify({ stop_reason: { type: "budget_reached" } });

/** A log that has moved on so that a note means nothing any more. */
const MOOT = [
  "NOT_FOUND",
  "POSITION_MISMATCH",
  "EVENT_CONTENT_DIFFERS",
  "CALL_ALREADY_ANSWERED",
  "INVALID_FIELD",
] as const;

export class TreeRelay implements Service {
  readonly name = "tree relay";
  private readonly deps: TreeRelayDeps;
  private readonly waits: ThreadWaits;
  private readonly outcomes: OutcomeWaits;
  private readonly running = new Map<string, { again: boolean; readonly done: Promise<void> }>();
  private readonly stops: (() => void)[] = [];
  private polling: Promise<void> | undefined;
  private polls = 0;
  private stopped = false;

  constructor(deps: TreeRelayDeps) {
    this.deps = deps;
    this.waits = new ThreadWaits({
      ...deps,
      append: (sessionId, events) => this.append(sessionId, events),
      held: ({ sessionId, callId }) => this.tellBudget(sessionId, { id: callId, payload: AT_BUDGET }),
      asking: ({ sessionId }) => this.tellAsks(sessionId),
    });
    this.outcomes = new OutcomeWaits({
      ...deps,
      held: ({ sessionId, sincePosition }) =>
        this.tellBudget(sessionId, { id: `${sessionId} ${sincePosition}`, payload: AT_BUDGET }),
      asking: ({ sessionId }) => this.tellAsks(sessionId),
    });
  }

  async start(): Promise<void> {
    const { hub, clock } = this.deps;
    const isThread = (sessionId: string) => sessionId.startsWith(ID_PREFIXES.thread);
    this.stops.push(
      hub.onAdvance(({ sessionId }) => {
        if (isThread(sessionId)) void this.relay(sessionId);
      }),
      clock.every(POLL_EVERY_MS, () => {
        this.polling ??= this.poll().finally(() => {
          this.polling = undefined;
        });
      }),
    );
  }

  async stop(): Promise<void> {
    this.stopped = true;
    for (const stop of this.stops.splice(0)) stop();
    await this.polling;
    await Promise.all([...this.running.values()].map(({ done }) => done));
  }

  /** Passes on what the session's log has to say, as far as it does now. Never rejects: what fails is tried by the next poll. */
  relay(sessionId: string): Promise<void> {
    const running = this.running.get(sessionId);
    if (running !== undefined) {
      running.again = true;
      return running.done;
    }
    if (this.stopped) return Promise.resolve();
    const state = { again: false, done: Promise.resolve() };
    const run = async () => {
      do {
        state.again = false;
        await this.passAll(sessionId);
      } while (state.again && !this.stopped);
    };
    state.done = run()
      .catch((error: unknown) => {
        this.deps.log.warn(
          { sessionId, error: messageOf(error) },
          "could not pass on what a log says to its tree",
        );
      })
      .finally(() => this.running.delete(sessionId));
    this.running.set(sessionId, state);
    return state.done;
  }

  /** Says how the wait's threads stand, when that is what it waits for; see ThreadWaits. */
  settle(wait: Parameters<ThreadWaits["settle"]>[0], answer: "by result" | "by text") {
    return this.waits.settle(wait, answer);
  }

  private async passAll(sessionId: string): Promise<void> {
    const { threads } = this.deps;
    for (;;) {
      const news = await threads.news(sessionId, NEWS_AT_ONCE);
      const place = news.length === 0 ? undefined : await threads.place(sessionId);
      for (const one of news) {
        if (place !== undefined && one.eventId !== "") await this.pass(place, one);
        failpoint("server.tree_news_told");
        await threads.passedOn(sessionId, one.position);
      }
      if (news.length > 0 && place?.parentSessionId !== undefined) {
        await this.waits.settleAll(place.parentSessionId);
        await this.outcomes.settle(place.rootSessionId);
      }
      if (news.length < NEWS_AT_ONCE) return;
    }
  }

  private async pass(place: TreePlace, news: TreeNews): Promise<void> {
    try {
      if (news.type === "user.interrupt" && news.threadId === "") await this.passInterrupt(place, news);
      else if (place.parentSessionId === undefined) await this.passDown(place, news);
      else await this.passUp(place, news);
    } catch (error) {
      if (!MOOT.some((reason) => isTendonError(error, reason))) throw error;
      const { sessionId, eventId } = news;
      this.deps.log.warn(
        { sessionId, eventId, error: messageOf(error) },
        "a log has no place for what another one says",
      );
    }
  }

  /** To all threads below; one that names its thread, or of a thread, only when it stops whatever is below too. */
  private async passInterrupt(place: TreePlace, { sessionId, eventId, payload }: TreeNews): Promise<void> {
    const { keeps_queued: keepsQueued, session_thread_id: only } = JSON.parse(payload) as Record<
      string,
      unknown
    >;
    const isForAll = place.parentSessionId === undefined && (only === undefined || only === null);
    if (!isForAll && keepsQueued !== true) return;
    const { threads } = this.deps;
    const said = keepsQueued === true ? { keeps_queued: true } : {};
    for (let level = await threads.liveChildren([sessionId]); level.length > 0; ) {
      const waiting = await threads.active(level, true);
      const interruptNext = async () => {
        for (let id = waiting.shift(); id !== undefined; id = waiting.shift()) {
          await this.append(id, [treeEvent(derivedEventId(eventId, id), "user.interrupt", said)]);
        }
      };
      await Promise.all(Array.from({ length: AT_ONCE }, interruptNext));
      level = await threads.liveChildren(level);
    }
  }

  /** What a client says to a thread. */
  private async passDown(root: TreePlace, news: TreeNews): Promise<void> {
    const { eventId, type, threadId, payload, internal } = news;
    const target = await this.deps.threads.place(threadId);
    if (target?.rootSessionId !== root.sessionId || target.sessionId === root.sessionId) return;
    const said = { id: eventId, type, threadId: "", payload, internal };
    await this.append(threadId, [said]);
  }

  private async passUp(thread: TreePlace, news: TreeNews): Promise<void> {
    const { type, eventId, payload } = news;
    const threadId = thread.sessionId;
    const shown = { id: eventId, type, threadId, payload, internal: undefined };
    const answerField = type === "user.tool_confirmation" ? "tool_use_id" : ANSWER_FIELDS[type];
    if (answerField !== undefined) {
      const callId = String((JSON.parse(payload) as Record<string, unknown>)[answerField]);
      const calls = await this.deps.threads.shownCalls(thread.rootSessionId, threadId, [callId]);
      if (calls.has(callId)) await this.show(thread, shown);
    } else if (type.startsWith("session.status_")) {
      if (type === "session.status_running") await this.tellGoesOn(thread.rootSessionId);
      await this.show(thread, statusEvent(thread, news));
      if (type === "session.status_idle") {
        await this.report(thread, news);
        await this.tellBudget(thread.rootSessionId, { id: news.eventId, payload: news.payload });
        await this.tellAsks(thread.rootSessionId);
      }
    } else await this.show(thread, shown);
  }

  /** In the root's log, unless that is over. */
  private async show(thread: TreePlace, event: NewEvent): Promise<void> {
    if (await this.isLive(thread.rootSessionId)) await this.append(thread.rootSessionId, [event]);
  }

  private async report(thread: TreePlace, news: TreeNews): Promise<void> {
    const parentId = thread.parentSessionId!;
    const parent = await this.deps.threads.place(parentId);
    const event = parent && (await reportOf(this.deps.events, thread, parent, news));
    if (event !== undefined && (await this.isLive(parentId))) await this.append(parentId, [event]);
  }

  private async tellBudget(sessionId: string, cause: { id: string; payload: string }): Promise<void> {
    const notice = await budgetNotice(this.deps, sessionId, cause);
    if (notice === undefined) return;
    const expectedPosition = BigInt(notice.head);
    const request = { sessionId, events: [notice.event], authority: "server" as const, expectedPosition };
    announceAppended(this.deps.hub, sessionId, await this.deps.events.append(request));
  }

  /** `sessionId`: the root, or a thread of it. */
  private async tellAsks(sessionId: string): Promise<void> {
    const root = (await this.deps.threads.place(sessionId))?.rootSessionId;
    const notice = root === undefined ? undefined : await askNotice(this.deps, root);
    if (root === undefined || notice === undefined || notice === "said") return;
    const { event, head } = notice;
    const request = { sessionId: root, events: [event], authority: "server" as const };
    try {
      const appended = await this.deps.events.append({ ...request, expectedPosition: BigInt(head) });
      announceAppended(this.deps.hub, root, appended);
    } catch (error) {
      // Something was said meanwhile: what follows is looked at anew.
      if (!isTendonError(error, "POSITION_MISMATCH")) throw error;
    }
  }

  private async tellGoesOn(rootSessionId: string): Promise<void> {
    const event = await goOnNotice(this.deps, rootSessionId);
    if (event !== undefined && (await this.isLive(rootSessionId))) await this.append(rootSessionId, [event]);
  }

  private async isLive(sessionId: string): Promise<boolean> {
    return (await this.deps.sessions.standing(sessionId))?.archived === false;
  }

  private async append(sessionId: string, events: readonly NewEvent[]): Promise<void> {
    const appended = await this.deps.events.append({ sessionId, events, authority: "server" });
    announceAppended(this.deps.hub, sessionId, appended);
  }

  private async poll(): Promise<void> {
    const { threads, stopOrphan, log } = this.deps;
    try {
      for (const sessionId of await threads.withNews(SESSIONS_PER_POLL)) await this.relay(sessionId);
      await this.waits.settleSome();
      await this.outcomes.settleSome();
      this.polls += 1;
      if (this.polls % ORPHANS_EVERY_POLLS !== 0) return;
      for (const threadId of await threads.orphans(SESSIONS_PER_POLL)) await stopOrphan(threadId);
    } catch (error) {
      log.warn({ error: messageOf(error) }, "could not look after threads; the next poll tries again");
    }
  }
}

function statusEvent(thread: TreePlace, { eventId, type, payload }: TreeNews): NewEvent {
  const { stop_reason, stop_details } = JSON.parse(payload) as Record<string, unknown>;
  const stop = type === "session.status_idle" ? { stop_reason, stop_details: stop_details ?? null } : {};
  const facts = { session_thread_id: threadIdOf(thread.sessionId), agent_name: thread.agentName, ...stop };
  return treeEvent(
    eventId,
    type.replace("session.status_", "session.thread_status_"),
    facts,
    thread.sessionId,
  );
}
