/** Bounds what all callers together may have a server put together in memory. */
import { TendonError } from "../../kit/errors.ts";

export class ByteBudget {
  private readonly maxBytes: number;
  private taken = 0;

  constructor(maxBytes: number) {
    this.maxBytes = maxBytes;
  }

  /** UNAVAILABLE when there is no room now. */
  take(bytes: number): void {
    if (this.taken + bytes > this.maxBytes) {
      throw new TendonError("UNAVAILABLE", "too many large texts are on their way to this server; try again");
    }
    this.taken += bytes;
  }

  giveBack(bytes: number): void {
    this.taken -= bytes;
  }
}
