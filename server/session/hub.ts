/**
 * Who is told what, on this replica. Keeps no truth: everything it says can be read from the database, and is found there
 * within a second when a hint was lost.
 *
 * H1 Nothing is told before it is committed and readable.
 * H2 An append of this replica is told here at once, in memory, and to other replicas by a hint (hint-sender.ts).
 * H3 Once a second one query asks for all sessions with watchers here, leases served here, and work that waits; also
 *    whenever the listening connection stands again.
 */
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { Preview } from "../../proto/gen/tendon/v1/event_pb.js";
import type { PassPreviews } from "../ports/peers.ts";
import type { Advance } from "../ports/session-log.ts";
import type { EventRecord, EventStore, HeadHint, HintListener } from "../store/events.ts";
import { toEventMessage } from "./event-message.ts";
import { HintSender } from "./hint-sender.ts";
import { Tail } from "./tail.ts";
import { Watcher } from "./watcher.ts";

export interface HubDeps {
  readonly events: Pick<EventStore, "heads" | "hint">;
  /** Without one, other replicas' appends are found by asking. */
  readonly hints: HintListener | undefined;
  readonly replicaId: string;
  /** Previews of this replica's harnesses and hands, for the watchers of others. */
  readonly passPreviews?: PassPreviews;
  /** Whether there is no other replica to give hints to; one that has just begun asks within a second (H3). */
  readonly isAlone?: () => boolean;
  readonly clock: Clock;
  readonly log: Logger;
}

const ASK_EVERY_MS = 1_000;

/** Newest positions that were told, so that a hint of one's own append is not told twice. */
const MAX_TOLD = 20_000;

interface Watched {
  readonly watchers: Set<Watcher>;
  readonly tail: Tail;
}

export class Hub implements Service {
  readonly name = "session hub";
  private readonly deps: HubDeps;
  private readonly sender: HintSender;
  private readonly watched = new Map<string, Watched>();
  private readonly listeners = new Set<(advance: Advance) => void>();
  private readonly previewListeners = new Set<(sessionId: string, isWatched: boolean) => void>();
  private readonly told = new Map<string, bigint>();
  private draining = false;
  private onLastGone = () => {};
  private stopAsking = () => {};
  private asking: Promise<void> | undefined;

  constructor(deps: HubDeps) {
    this.deps = deps;
    this.sender = new HintSender(deps);
  }

  async start(): Promise<void> {
    this.stopAsking = this.deps.clock.every(ASK_EVERY_MS, () => this.ask());
    await this.deps.hints?.start({
      onHints: (hints) => this.heard(hints),
      onConnected: () => this.ask(),
    });
  }

  async stop(): Promise<void> {
    await this.drain(0);
    this.stopAsking();
    await this.deps.hints?.stop();
    await this.asking;
    await this.sender.stop();
  }

  /** Watchers' streams end with DRAINING, new ones too. Resolves when none is left, at the latest after `graceMs`. */
  async drain(graceMs: number): Promise<void> {
    this.draining = true;
    for (const { watchers } of this.watched.values()) for (const watcher of watchers) watcher.drain();
    if (this.watched.size === 0) return;
    await new Promise<void>((resolve) => {
      const stop = this.deps.clock.after(graceMs, resolve);
      this.onLastGone = () => {
        stop();
        resolve();
      };
    });
  }

  watch(sessionId: string, previews: boolean): Watcher {
    const watcher = new Watcher(sessionId, previews);
    if (this.draining) watcher.drain();
    const watched = this.watched.get(sessionId) ?? { watchers: new Set(), tail: new Tail() };
    const isFirst = previews && !wantsPreviews(watched);
    watched.watchers.add(watcher);
    this.watched.set(sessionId, watched);
    if (isFirst) this.tellPreviewed(sessionId, true);
    return watcher;
  }

  unwatch(watcher: Watcher): void {
    const watched = this.watched.get(watcher.sessionId);
    const wasThere = watched?.watchers.delete(watcher);
    if (wasThere && watcher.wantsPreviews && !wantsPreviews(watched!)) {
      this.tellPreviewed(watcher.sessionId, false);
    }
    if (watched?.watchers.size === 0) this.watched.delete(watcher.sessionId);
    if (this.watched.size === 0) this.onLastGone();
  }

  /** The events after a position, when all of them are in memory. */
  tailAfter(sessionId: string, position: number): EventRecord[] | undefined {
    return this.watched.get(sessionId)?.tail.after(position);
  }

  onAdvance(listener: (advance: Advance) => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** This replica has committed events; `added` are the events when they are at hand. */
  announce(advance: Advance, added: readonly EventRecord[] = []): void {
    this.watched.get(advance.sessionId)?.tail.add(added);
    this.sender.push(advance);
    const events = () => added.map((event) => toEventMessage(event, true));
    this.tell(added.length === 0 ? advance : { ...advance, events });
  }

  /** A checkpoint of the session was signed here. */
  checkpointed(sessionId: string, position: number): void {
    for (const watcher of this.watched.get(sessionId)?.watchers ?? []) watcher.checkpointed(position);
  }

  /** This replica has archived or deleted the session. */
  ended(sessionId: string, how: "archived" | "deleted"): void {
    if (how === "deleted") {
      this.told.delete(sessionId);
      this.sender.push({ sessionId, head: undefined, hasWork: false });
    }
    this.endWatchers(sessionId, how);
  }

  publishPreviews(sessionId: string, previews: readonly Preview[]): void {
    this.showPreviews(sessionId, previews);
    this.deps.passPreviews?.(sessionId, previews);
  }

  /** To the watchers here alone: what another replica has passed on goes no further. */
  showPreviews(sessionId: string, previews: readonly Preview[]): void {
    for (const watcher of this.watched.get(sessionId)?.watchers ?? []) watcher.offer(previews);
  }

  previewed(): string[] {
    return [...this.watched].filter(([, watched]) => wantsPreviews(watched)).map(([sessionId]) => sessionId);
  }

  onPreviewed(listener: (sessionId: string, isWatched: boolean) => void): () => void {
    this.previewListeners.add(listener);
    return () => this.previewListeners.delete(listener);
  }

  /** Archived or deleted on another replica: the database says which. */
  endedElsewhere(sessionId: string): void {
    if (this.watched.has(sessionId)) this.ask();
  }

  private tellPreviewed(sessionId: string, isWatched: boolean): void {
    for (const listener of this.previewListeners) listener(sessionId, isWatched);
  }

  private tell(advance: Advance): void {
    const told = this.told.get(advance.sessionId) ?? -1n;
    this.told.delete(advance.sessionId);
    this.told.set(advance.sessionId, advance.head > told ? advance.head : told);
    if (this.told.size > MAX_TOLD) this.told.delete(this.told.keys().next().value!);
    for (const watcher of this.watched.get(advance.sessionId)?.watchers ?? []) {
      watcher.advance(Number(advance.head));
    }
    for (const listener of this.listeners) {
      try {
        listener(advance);
      } catch (error) {
        this.deps.log.error({ err: error }, `a listener of the log failed: ${messageOf(error)}`);
      }
    }
  }

  private heard(hints: readonly HeadHint[]): void {
    for (const { sessionId, head, hasWork } of hints) {
      if (head === undefined) this.endWatchers(sessionId, "deleted");
      else if (head > (this.told.get(sessionId) ?? -1n)) this.tell({ sessionId, head, hasWork });
    }
  }

  private endWatchers(sessionId: string, how: "archived" | "deleted"): void {
    for (const watcher of this.watched.get(sessionId)?.watchers ?? []) watcher.end(how);
  }

  private ask(): void {
    if (this.asking || (this.watched.size === 0 && this.listeners.size === 0)) return;
    this.asking = this.askOnce()
      .catch((error) =>
        this.deps.log.warn({ error: messageOf(error) }, "could not ask where the sessions stand"),
      )
      .finally(() => {
        this.asking = undefined;
      });
  }

  private async askOnce(): Promise<void> {
    const sessionIds = [...this.watched.keys()];
    const heads = await this.deps.events.heads({ sessionIds, replicaId: this.deps.replicaId });
    const missing = new Set(sessionIds);
    for (const { sessionId, head, hasWork, archived, waiting, checkpointPosition } of heads) {
      missing.delete(sessionId);
      const told = this.told.get(sessionId);
      // What waits is told again and again: whoever could not take it then may be able to now.
      if (waiting || told === undefined || head > told) this.tell({ sessionId, head, hasWork });
      if (checkpointPosition > 0) this.checkpointed(sessionId, checkpointPosition);
      if (archived) this.endWatchers(sessionId, "archived");
    }
    for (const sessionId of missing) this.endWatchers(sessionId, "deleted");
  }
}

function wantsPreviews({ watchers }: Watched): boolean {
  for (const watcher of watchers) if (watcher.wantsPreviews) return true;
  return false;
}
