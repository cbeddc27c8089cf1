/** A session's row from its events alone, as if they had been appended one by one (pure). */
import { factsOf, type StatusName } from "./event-facts.ts";

export interface FoldedEvent {
  readonly type: string;
  readonly payload: string;
  readonly position: number;
  readonly createdAt: Date;
}

export class LogFold {
  status: StatusName = "idle";
  stopReason = "";
  activeMs = 0;
  modelRequests = 0;
  /** Input, output, read from and written to a cache. */
  tokens: [number, number, number, number] = [0, 0, 0, 0];
  listCostNanoUsd = 0;
  unpricedRequests = 0;
  webSearchRequests = 0;
  /** Inputs that were taken in, and the positions of the events that say so. */
  readonly consumed = new Map<string, number>();
  private runningSinceMs: number | undefined;

  /** Events in the order of their positions. Returns the call that the event answers. */
  add(event: FoldedEvent): { answers: string | undefined } {
    const { answers, fold, consumed } = factsOf(event, false);
    // What a fork's origin had used is the origin's.
    if (event.type === "session.forked") this.forget();
    if (fold?.kind === "status") this.turnTo(fold.status, fold.stopReason, event.createdAt.getTime());
    if (fold?.kind === "usage") {
      this.modelRequests += 1;
      for (const [index, count] of fold.tokens.entries()) this.tokens[index]! += count;
      if (fold.listCost === "unpriced") this.unpricedRequests += 1;
      else this.listCostNanoUsd += fold.listCost?.nanoUsd ?? 0;
    }
    if (fold?.kind === "searches") {
      this.webSearchRequests += fold.count;
      this.listCostNanoUsd += fold.nanoUsd;
    }
    for (const id of consumed) if (!this.consumed.has(id)) this.consumed.set(id, event.position);
    return { answers };
  }

  private turnTo(status: StatusName, stopReason: string, atMs: number): void {
    this.status = status;
    if (status === "running") {
      this.runningSinceMs ??= atMs;
      return;
    }
    if (status === "idle") this.stopReason = stopReason;
    if (this.runningSinceMs !== undefined) this.activeMs += Math.max(0, atMs - this.runningSinceMs);
    this.runningSinceMs = undefined;
  }

  private forget(): void {
    this.activeMs = 0;
    this.modelRequests = 0;
    this.tokens = [0, 0, 0, 0];
    this.listCostNanoUsd = 0;
    this.unpricedRequests = 0;
    this.webSearchRequests = 0;
    this.runningSinceMs = undefined;
  }
}
