/** Lists are read a page at a time, newest first. */

/** Place of an entry in a list, as text that only the store reads: its time to the microsecond, and its id. */
export type Cursor = readonly [at: string, id: string];

export interface PageRequest {
  /** At most so many. */
  readonly size: number;
  /** Where the page before ended; undefined for the first page. */
  readonly after: Cursor | undefined;
}

export interface Page<T> {
  readonly items: T[];
  /** Where the next page begins; undefined when this is the last. */
  readonly next: Cursor | undefined;
}
