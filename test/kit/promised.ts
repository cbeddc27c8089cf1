/** Upper bounds on time: what the product promises, on a machine that has other things to do. */
import { isWholeRun } from "./fault-trials.ts";

/** What two cores that serve other test files, their programs and their containers may add. */
const BUSY_MS = 15_000;

/**
 * How long something may take for which `withinMs` is promised. `npm run test:faults` takes the promise at its word.
 * `npm test` runs on machines of every kind: there the bound tells what was done from what was never done, no more. Where
 * the product has another, longer bound that would do the same, the test sets that one far above this.
 */
export function promised(withinMs: number): number {
  return isWholeRun ? withinMs : withinMs + BUSY_MS;
}
