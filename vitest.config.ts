import { defineConfig } from "vitest/config";

// `npm test` runs everything, with a bounded part of each fault test. `npm run test:faults` (mode "faults") runs the fault
// tests alone and whole, and what needs the database once more behind a transaction-mode pooler. How much is asked for stands
// here alone: see test/kit/fault-trials.ts and test/kit/postgres.ts.
const BEHIND_POOLER = [
  "session-append",
  "session-append-contents",
  "session-watch",
  "session-service",
  "session-slices",
  "session-forks",
  "session-copies",
  "session-large-events",
  "session-retention",
  "store-blobs",
  "dispatch",
  "dispatch-leases",
  "threads",
  "budgets",
  "replicas",
  "hand-executions",
  "hand-parking",
  "hand-agents",
  "hand-placement",
  "hand-short-calls",
  "hand-sweeper",
  "replicas-failures",
  "server-admin",
  "server-definitions",
  "vault",
  "vault-secrets",
  "credential",
  "credential-oauth",
].map((name) => `test/integration/${name}.test.ts`);

const EVERYTHING = { include: ["**/*.test.ts"], wholeFaultTests: false, behindPooler: false };
const WHOLE_FAULT_TESTS = {
  include: ["test/faults/**/*.test.ts"],
  wholeFaultTests: true,
  behindPooler: false,
};
const ONCE_MORE = { include: BEHIND_POOLER, wholeFaultTests: false, behindPooler: true };

function tests({ include, wholeFaultTests, behindPooler }: typeof EVERYTHING) {
  return {
    include,
    exclude: ["node_modules/**", "dist/**"],
    pool: "forks" as const,
    // For what hangs. Far above what anything takes, since a busy machine is slow.
    testTimeout: wholeFaultTests ? 1_200_000 : 180_000,
    hookTimeout: 180_000,
    expect: { poll: { timeout: 60_000 } },
    globalSetup: ["./test/kit/global-setup.ts"],
    provide: { wholeFaultTests, behindPooler, faultSeed: process.env.TENDON_TEST_SEED ?? "" },
  };
}

export default defineConfig(({ mode }) => {
  // One more than most machines of CI have processors: much of the time tests wait for programs and clocks.
  const run = { maxWorkers: 3, reporters: ["default", "./test/kit/totals-reporter.ts"] };
  if (mode !== "faults") return { test: { ...run, ...tests(EVERYTHING) } };
  const projects = [
    { test: { name: "faults", ...tests(WHOLE_FAULT_TESTS) } },
    { test: { name: "behind a pooler", ...tests(ONCE_MORE) } },
  ];
  return { test: { ...run, projects } };
});
