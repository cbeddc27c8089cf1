/** The real programs, a server over a small pool and one hand agent, with an operator who makes and uses hands. */
import { HandOperator } from "./hand-operator.ts";
import { type Platform, startPlatform } from "./platform.ts";
import { createTestDatabase } from "./postgres.ts";

export interface OperatorRig {
  readonly platform: Platform;
  readonly operator: HandOperator;
  stop(): Promise<void>;
}

export async function startOperatorRig(): Promise<OperatorRig> {
  const database = await createTestDatabase();
  const platform = await startPlatform({
    programs: ["hand-agent"],
    env: { server: { TENDON_DATABASE_URL: database.url, TENDON_DATABASE_POOL: "5" } },
  }).catch(async (error) => {
    await database.drop();
    throw error;
  });
  return {
    platform,
    operator: new HandOperator(platform),
    async stop() {
      await platform.stop();
      await database.drop();
    },
  };
}
