import { defineConfig } from "vitest/config";

// `npm test` runs everything, with a bounded part of each fault test; `npm run test:faults` (mode "faults") runs the fault
// tests alone and whole. Both read from here how much is asked for: see test/kit/fault-trials.ts.
export default defineConfig(({ mode }) => {
  const whole = mode === "faults";
  return {
    test: {
      include: [whole ? "test/faults/**/*.test.ts" : "**/*.test.ts"],
      exclude: ["node_modules/**", "dist/**"],
      pool: "forks",
      maxWorkers: 2,
      testTimeout: whole ? 1_200_000 : 30_000,
      hookTimeout: 60_000,
      reporters: ["default", "./test/kit/totals-reporter.ts"],
      globalSetup: ["./test/kit/global-setup.ts"],
      provide: { wholeFaultTests: whole, faultSeed: process.env.TENDON_TEST_SEED ?? "" },
    },
  };
});
