/**
 * The programs that loops keep between the steps of sessions: at most one for a lease, ended with it, and bounded in all.
 * Where there is no room for another, the one that has waited longest for its next step is ended: nothing is lost by that,
 * because whatever it knows is in the log. When none waits, the new one does.
 */
export interface KeptChild {
  /** It takes no further step. */
  readonly isOver: boolean;
  /** May be called often; never rejects. */
  end(): Promise<void>;
}

interface Place<C> {
  readonly child: C;
  isBusy: boolean;
  /** Ends the child when the lease ends. */
  readonly ended: () => void;
}

export class KeptChildren<C extends KeptChild> {
  private readonly max: number;
  /** By the signal that ends the lease; those that wait stand in the order in which their steps ended. */
  private readonly places = new Map<AbortSignal, Place<C>>();
  private readonly waiting: (() => void)[] = [];
  private starting = 0;

  constructor(max: number) {
    this.max = max;
  }

  get size(): number {
    return this.places.size + this.starting;
  }

  /**
   * One step with the child that this lease keeps, or with a new one. It is kept for the next step when `step` resolves and
   * it is not over; when `step` rejects, or `isUsable` says no to it, it is ended. Rejects with the signal's reason when
   * that aborts.
   */
  async run<T>(
    held: AbortSignal,
    signal: AbortSignal,
    start: () => Promise<C>,
    step: (child: C) => Promise<T>,
    isUsable: (child: C) => boolean = () => true,
  ): Promise<T> {
    const place = (await this.take(held, isUsable)) ?? (await this.open(held, signal, start));
    const stop = () => void this.close(held, place);
    signal.addEventListener("abort", stop, { once: true });
    try {
      signal.throwIfAborted();
      const result = await step(place.child);
      if (place.child.isOver || held.aborted) await this.close(held, place);
      else this.rest(held, place);
      return result;
    } catch (error) {
      await this.close(held, place);
      throw error;
    } finally {
      signal.removeEventListener("abort", stop);
    }
  }

  private async take(held: AbortSignal, isUsable: (child: C) => boolean): Promise<Place<C> | undefined> {
    const place = this.places.get(held);
    if (place === undefined) return undefined;
    if (place.child.isOver || !isUsable(place.child)) {
      await this.close(held, place);
      return undefined;
    }
    place.isBusy = true;
    return place;
  }

  private async open(held: AbortSignal, signal: AbortSignal, start: () => Promise<C>): Promise<Place<C>> {
    await this.takeRoom(signal);
    let child: C;
    try {
      child = await start();
    } catch (error) {
      this.starting -= 1;
      this.letIn();
      throw error;
    }
    this.starting -= 1;
    const place: Place<C> = { child, isBusy: true, ended: () => void this.close(held, place) };
    this.places.set(held, place);
    if (held.aborted) place.ended();
    else held.addEventListener("abort", place.ended, { once: true });
    return place;
  }

  /** Counts the place as taken in the moment in which it is found free. */
  private async takeRoom(signal: AbortSignal): Promise<void> {
    while (this.size >= this.max) {
      signal.throwIfAborted();
      const idle = [...this.places].find(([, { isBusy }]) => !isBusy);
      if (idle !== undefined) {
        await this.close(...idle);
        continue;
      }
      await new Promise<void>((resolve) => {
        const go = () => {
          signal.removeEventListener("abort", go);
          const at = this.waiting.indexOf(go);
          if (at >= 0) this.waiting.splice(at, 1);
          resolve();
        };
        this.waiting.push(go);
        signal.addEventListener("abort", go, { once: true });
      });
    }
    signal.throwIfAborted();
    this.starting += 1;
  }

  private rest(held: AbortSignal, place: Place<C>): void {
    if (this.places.get(held) !== place) return;
    place.isBusy = false;
    this.places.delete(held);
    this.places.set(held, place);
    this.letIn();
  }

  /** The place is free once the child is gone. */
  private async close(held: AbortSignal, place: Place<C>): Promise<void> {
    place.isBusy = true;
    await place.child.end();
    this.forget(held, place);
  }

  private forget(held: AbortSignal, place: Place<C>): void {
    held.removeEventListener("abort", place.ended);
    if (this.places.get(held) === place) this.places.delete(held);
    this.letIn();
  }

  private letIn(): void {
    this.waiting[0]?.();
  }
}
