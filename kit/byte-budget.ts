/** Bounds what all callers together may have a server put together in memory. */
import { TendonError } from "./errors.ts";

/** Of all texts that one call has put together. */
export const MAX_CALL_BYTES = 64 * 1024 * 1024;

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

/** MESSAGE_TOO_LARGE. */
export function checkBytes(bytes: number, limit: number, field: string): void {
  if (bytes <= limit) return;
  throw new TendonError("MESSAGE_TOO_LARGE", `${field}: has more than ${limit} bytes`, {
    field,
    limit: String(limit),
  });
}
