/**
 * Changes of one thing that several ask for at once: each reads it, works, and writes it unless somebody else has written it
 * meanwhile. Who was too late has the next try in turn with all others here, so that all get through; programs elsewhere can
 * still come before, which is why tries have a bound.
 */
import { isTendonError, TendonError } from "./errors.ts";

/** At one thing. */
const MAX_WAITING = 1_000;
/** Against other programs, each of which writes once for every try that fails. */
const MAX_TRIES = 50;

interface Queue {
  /** Of the last in it; does not reject. */
  end: Promise<void>;
  waiting: number;
}

export class Turns {
  private readonly what: string;
  private readonly queues = new Map<string, Queue>();

  /** `what` names the thing in refusals. */
  constructor(what: string) {
    this.what = what;
  }

  /**
   * What the attempt resolves to, once that is neither undefined nor VERSION_MISMATCH: these say that somebody else was
   * faster. VERSION_MISMATCH when that was so too often, RATE_LIMITED while too many wait for the same.
   */
  async untilDone<T>(id: string, attempt: () => Promise<T | undefined>): Promise<T> {
    const first = await unlessLate(attempt);
    if (first !== undefined) return first;
    return this.inTurn(id, async () => {
      for (let tries = 1; tries < MAX_TRIES; tries++) {
        const done = await unlessLate(attempt);
        if (done !== undefined) return done;
      }
      throw new TendonError(
        "VERSION_MISMATCH",
        `others have changed the ${this.what} each of the ${MAX_TRIES} times that this was tried; try again`,
        { id },
      );
    });
  }

  private async inTurn<T>(id: string, work: () => Promise<T>): Promise<T> {
    const queue = this.queues.get(id) ?? { end: Promise.resolve(), waiting: 0 };
    if (queue.waiting >= MAX_WAITING)
      throw new TendonError("RATE_LIMITED", `${MAX_WAITING} changes of the ${this.what} wait; try again`, {
        id,
      });
    queue.waiting += 1;
    this.queues.set(id, queue);
    const mine = queue.end.then(work);
    queue.end = mine.then(
      () => {},
      () => {},
    );
    try {
      return await mine;
    } finally {
      queue.waiting -= 1;
      if (queue.waiting === 0) this.queues.delete(id);
    }
  }
}

async function unlessLate<T>(attempt: () => Promise<T | undefined>): Promise<T | undefined> {
  try {
    return await attempt();
  } catch (error) {
    if (isTendonError(error, "VERSION_MISMATCH")) return undefined;
    throw error;
  }
}
