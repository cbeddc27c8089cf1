/** Rigs for the tests of one file, over one database: what one test leaves is no place for the next. */
import { afterAll, afterEach, beforeAll, beforeEach } from "vitest";
import { HandRig } from "./hand-rig.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";

type Options = Omit<ConstructorParameters<typeof HandRig>[0], "pool">;

export interface HandRigs {
  database(): TestDatabase;
  /** Stopped after the test. */
  start(options?: Options): Promise<HandRig>;
}

export function useHandRigs(): HandRigs {
  let database: TestDatabase;
  const rigs: HandRig[] = [];
  beforeAll(async () => {
    database = await createTestDatabase();
  });
  afterAll(() => database.drop());
  afterEach(async () => {
    for (const rig of rigs.splice(0)) await rig.stop();
    const pool = database.pool();
    await pool.query("update hand_agents set revoked_at = now() where revoked_at is null");
    await pool.query("update environments set is_default = false");
    await pool.query("update hands set state = 'released', destroy_pending = false");
  });
  return {
    database: () => database,
    async start(options = {}) {
      const rig = new HandRig({ pool: database.pool(), ...options });
      // Replicas of one installation.
      rig.environmentId = rigs[0]?.environmentId ?? "";
      rigs.push(rig);
      await rig.start();
      return rig;
    },
  };
}

/** One for each test; `take` gets it before the test begins. */
export function useHandRig(take: (rig: HandRig) => void, options: Options = {}): HandRigs {
  const rigs = useHandRigs();
  beforeEach(async () => take(await rigs.start(options)));
  return rigs;
}
