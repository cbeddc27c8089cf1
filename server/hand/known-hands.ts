/**
 * Which hand a session's slot had when it was last used. Only a guess that saves looking it up: whether it still stands
 * is checked in the statement that binds a call to it.
 */
import type { HandRecord } from "../store/hands.ts";

const KEPT = 10_000;

export type KnownHand = Pick<HandRecord, "handId" | "workspaceId" | "toolsDigest"> & {
  readonly handAgentId: string;
};

export class KnownHands {
  private readonly kept = new Map<string, KnownHand>();

  find(sessionId: string, slot: string): KnownHand | undefined {
    return this.kept.get(nameOf(sessionId, slot));
  }

  remember({ sessionId, slot, handId, handAgentId, workspaceId, toolsDigest }: HandRecord): void {
    if (sessionId === undefined || handAgentId === undefined) return;
    const name = nameOf(sessionId, slot);
    this.kept.delete(name);
    this.kept.set(name, { handId, handAgentId, workspaceId, toolsDigest });
    const oldest = this.kept.size > KEPT ? this.kept.keys().next().value : undefined;
    if (oldest !== undefined) this.kept.delete(oldest);
  }

  forget(sessionId: string, slot: string): void {
    this.kept.delete(nameOf(sessionId, slot));
  }
}

function nameOf(sessionId: string, slot: string): string {
  return `${sessionId}/${slot}`;
}
