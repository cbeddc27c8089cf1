/** How much a fault test does: a bounded part in `npm test`, all of it in `npm run test:faults`. vitest.config.ts decides. */
import { inject } from "vitest";

declare module "vitest" {
  export interface ProvidedContext {
    wholeFaultTests: boolean;
    /** `TENDON_TEST_SEED` of the run; empty: every test takes a seed of its own. */
    faultSeed: string;
  }
}

/** Whether this run is `npm run test:faults`. A test must show the same in both, only more often. */
export const isWholeRun = inject("wholeFaultTests");

/** `bounded` in `npm test`, `whole` in `npm run test:faults`. */
export function trials(bounded: number, whole: number): number {
  return isWholeRun ? whole : bounded;
}
