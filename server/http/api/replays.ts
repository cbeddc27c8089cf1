/**
 * Answers of the last minute to requests that change something, for clients that repeat one because they did not hear the
 * answer (`X-Stainless-Retry-Count` above 0): the same bytes by the same credential get the first answer. In this replica's
 * memory, bounded; whoever wants more sends an `Idempotency-Key`.
 */
import { createHash } from "node:crypto";
import type { Clock } from "../../../kit/clock.ts";

const KEPT_MS = 60_000;
const MAX_ANSWERS = 2_000;
const MAX_ANSWER_CHARS = 16 * 1024;

export interface StoredAnswer {
  readonly status: number;
  readonly text: string;
}

interface Entry {
  readonly answer: Promise<StoredAnswer | undefined>;
  readonly untilMs: number;
}

export interface ReplayRequest {
  /** Whatever tells callers apart. */
  readonly credential: string;
  readonly method: string;
  /** With its query. */
  readonly url: string;
  readonly body: string;
  /** The caller says that it has sent this before. */
  readonly isRepeat: boolean;
}

export class Replays {
  private readonly clock: Clock;
  /** The oldest first. */
  private readonly entries = new Map<string, Entry>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** The first answer to a repeat, also one that is still being made; else that of `run`. Failures are not kept. */
  async answer(request: ReplayRequest, run: () => Promise<StoredAnswer>): Promise<StoredAnswer> {
    const key = digestOf(request);
    if (request.isRepeat) {
      const first = await this.find(key);
      if (first !== undefined) return first;
    }
    const answer = run();
    this.keep(
      key,
      answer.catch(() => undefined),
    );
    return answer;
  }

  private async find(key: string): Promise<StoredAnswer | undefined> {
    const entry = this.entries.get(key);
    if (entry === undefined || entry.untilMs <= this.clock.monotonicMs()) return undefined;
    return entry.answer;
  }

  private keep(key: string, answer: Entry["answer"]): void {
    const nowMs = this.clock.monotonicMs();
    for (const [old, { untilMs }] of this.entries) {
      if (untilMs > nowMs && this.entries.size < MAX_ANSWERS) break;
      this.entries.delete(old);
    }
    const entry = { answer, untilMs: nowMs + KEPT_MS };
    this.entries.delete(key);
    this.entries.set(key, entry);
    void answer.then((stored) => {
      const isKept = stored !== undefined && stored.text.length <= MAX_ANSWER_CHARS;
      if (!isKept && this.entries.get(key) === entry) this.entries.delete(key);
    });
  }
}

function digestOf({ credential, method, url, body }: ReplayRequest): string {
  const hash = createHash("sha256");
  for (const part of [credential, method, url, body]) hash.update(`${part.length}:`).update(part);
  return hash.digest("base64url");
}
