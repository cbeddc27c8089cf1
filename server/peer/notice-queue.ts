/** What one replica has to act on, in order. A replica that does not take it finds out by itself, later. */
import type { Clock } from "../../kit/clock.ts";
import type { PeerNoticeKind } from "../ports/peers.ts";

export type SendNotices = (notices: readonly PeerNoticeKind[]) => Promise<void>;

const MAX_WAITING = 4_096;
const MAX_AT_ONCE = 256;
const ATTEMPTS = 3;
const AGAIN_AFTER_MS = 200;

export class NoticeQueue {
  private readonly clock: Clock;
  private readonly send: SendNotices;
  private waiting: PeerNoticeKind[] = [];
  private sending = false;
  private stopped = false;

  constructor(clock: Clock, send: SendNotices) {
    this.clock = clock;
    this.send = send;
  }

  /** Never blocks. */
  push(notice: PeerNoticeKind): void {
    if (this.stopped || this.waiting.length >= MAX_WAITING) return;
    this.waiting.push(notice);
    if (!this.sending) void this.run();
  }

  stop(): void {
    this.stopped = true;
    this.waiting = [];
  }

  private async run(): Promise<void> {
    this.sending = true;
    while (this.waiting.length > 0) await this.deliver(this.waiting.splice(0, MAX_AT_ONCE));
    this.sending = false;
  }

  private async deliver(notices: readonly PeerNoticeKind[]): Promise<void> {
    for (let attempt = 1; attempt <= ATTEMPTS && !this.stopped; attempt += 1) {
      try {
        return await this.send(notices);
      } catch {
        if (attempt < ATTEMPTS) await this.clock.sleep(AGAIN_AFTER_MS);
      }
    }
  }
}
