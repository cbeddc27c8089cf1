/** When the other side of a connection counts as gone (H3). */

/**
 * To be asked every so often. What arrived while a process was held up waits to be read when it goes on, behind the timers
 * that are due: so one look does not judge. Two in a row do, with whatever came in read between them.
 */
export class SilenceWatch {
  private readonly boundMs: number;
  private silentLooks = 0;

  /** `boundMs`: silence up to this is none. It is found two looks later at the most. */
  constructor(boundMs: number) {
    this.boundMs = boundMs;
  }

  /** Whether it is over, `silentMs` after something was heard for the last time. */
  isOver(silentMs: number): boolean {
    this.silentLooks = silentMs > this.boundMs ? this.silentLooks + 1 : 0;
    return this.silentLooks >= 2;
  }
}
