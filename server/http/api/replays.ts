/**
 * Answers of the last minute to requests that change something, for clients that repeat one because they did not hear the
 * answer (`X-Stainless-Retry-Count` above 0): what asks the same by the same credential gets the first answer. In this
 * replica's memory, bounded; whoever wants more sends an `Idempotency-Key`.
 */
import { createHash } from "node:crypto";
import type { Clock } from "../../../kit/clock.ts";

const KEPT_MS = 60_000;
const MAX_ANSWERS = 2_000;
/** Of all answers together: more than one to the largest body that there may be, which may hold all of that body. */
const MAX_CHARS = 64 * 1024 * 1024;

export interface StoredAnswer {
  readonly status: number;
  readonly text: string;
}

/** What is known of a request before its body has come. */
export interface RequestHead {
  /** Whatever tells callers apart. */
  readonly credential: string;
  readonly method: string;
  /** With its query. */
  readonly url: string;
  /** The caller says that it has sent this before. */
  readonly isRepeat: boolean;
}

/** One request, from its beginning on. */
export interface Attempt {
  /**
   * Once all of the body has come, of which `content` is the text, or a digest: the answer that this was given before, also
   * one that is still being made; undefined when it is to be carried out, and then `end` is owed.
   */
  first(content: string): Promise<StoredAnswer | undefined>;
  /** With undefined for a failure: those are not kept. Has no effect where `first` was not asked. */
  end(answer: StoredAnswer | undefined): void;
}

interface Facts {
  /** In which requests began. */
  readonly order: number;
  readonly isRepeat: boolean;
}

interface Answering extends Facts {
  readonly answer: Promise<StoredAnswer | undefined>;
}

interface Kept extends Answering {
  readonly chars: number;
  readonly untilMs: number;
}

export class Replays {
  private readonly clock: Clock;
  private readonly answering = new Map<string, Answering>();
  /** The oldest first. */
  private readonly kept = new Map<string, Kept>();
  private chars = 0;
  private begun = 0;
  private forgetting: (() => void) | undefined;

  constructor(clock: Clock) {
    this.clock = clock;
  }

  begin(head: RequestHead): Attempt {
    this.begun += 1;
    const facts = { isRepeat: head.isRepeat, order: this.begun };
    let end: Attempt["end"] = () => {};
    return {
      first: async (content) => {
        const key = digestOf(head, content);
        for (let there = this.find(key, facts); there !== undefined; there = this.find(key, facts)) {
          const answer = await there.answer;
          if (answer !== undefined) return answer;
        }
        end = this.answer(key, facts);
        return undefined;
      },
      end: (answer) => end(answer),
    };
  }

  /** A request may be overtaken by its own repeat, while its body is on its way. */
  private find(key: string, { isRepeat, order }: Facts): Answering | undefined {
    this.forget();
    const there = this.answering.get(key) ?? this.kept.get(key);
    return there !== undefined && (isRepeat || (there.isRepeat && there.order > order)) ? there : undefined;
  }

  private answer(key: string, facts: Facts): Attempt["end"] {
    let settle: (answer: StoredAnswer | undefined) => void = () => {};
    const answer = new Promise<StoredAnswer | undefined>((resolve) => {
      settle = resolve;
    });
    const answering = { ...facts, answer };
    this.answering.set(key, answering);
    return (stored) => {
      // Before anybody hears of it: who waits for one that fails does not find it again.
      if (this.answering.get(key) === answering) this.answering.delete(key);
      if (stored !== undefined) this.keep(key, answering, stored.text.length);
      settle(stored);
    };
  }

  private keep(key: string, answering: Answering, chars: number): void {
    this.remove(key);
    this.kept.set(key, { ...answering, chars, untilMs: this.clock.monotonicMs() + KEPT_MS });
    this.chars += chars;
    this.forget();
  }

  /** What is over, and what is too much; and again when the next is over. */
  private forget(): void {
    const nowMs = this.clock.monotonicMs();
    for (const [key, { untilMs }] of this.kept) {
      if (untilMs > nowMs && this.kept.size <= MAX_ANSWERS && this.chars <= MAX_CHARS) {
        this.forgetting ??= this.clock.after(untilMs - nowMs, () => {
          this.forgetting = undefined;
          this.forget();
        });
        return;
      }
      this.remove(key);
    }
  }

  private remove(key: string): void {
    this.chars -= this.kept.get(key)?.chars ?? 0;
    this.kept.delete(key);
  }
}

function digestOf({ credential, method, url }: RequestHead, content: string): string {
  const hash = createHash("sha256");
  for (const part of [credential, method, url, content]) hash.update(`${part.length}:`).update(part);
  return hash.digest("base64url");
}
