import { defineConfig } from "vitest/config";
import LongestFirst from "./test/kit/longest-first.ts";

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

/** Beside their source. They share a few processes: to start one, and to read the sources, takes longer than most of them. */
const UNITS = ["{bench,cli,hand-agent,harness,kit,mcp-proxy,server}/**/*.test.ts"];
/** These start what the setup builds, and have a process of their own as all others have. */
const WITH_PROGRAMS = ["mcp-proxy/mcp-proxy.test.ts"];

const PLATFORM = {
  include: ["test/**/*.test.ts", ...WITH_PROGRAMS],
  wholeFaultTests: false,
  behindPooler: false,
};
/** Also what takes too long for `npm test` on a machine that has not done it before. */
const WHOLE = ["test/faults/**/*.test.ts", "test/interop/official-sdks.test.ts"];
const WHOLE_FAULT_TESTS = { ...PLATFORM, include: WHOLE, wholeFaultTests: true };
const ONCE_MORE = { ...PLATFORM, include: BEHIND_POOLER, behindPooler: true };

function tests({ include, wholeFaultTests, behindPooler }: typeof PLATFORM) {
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
  const run = {
    maxWorkers: 3,
    reporters: ["default", "./test/kit/totals-reporter.ts"],
    sequence: { sequencer: LongestFirst },
  };
  if (mode !== "faults") {
    const { globalSetup, ...units } = tests({ ...PLATFORM, include: UNITS });
    const exclude = [...units.exclude, ...WITH_PROGRAMS];
    const projects = [
      { test: { name: "platform", ...tests(PLATFORM) } },
      { test: { name: "units", ...units, exclude, isolate: false } },
    ];
    return { test: { ...run, projects } };
  }
  const projects = [
    { test: { name: "faults", ...tests(WHOLE_FAULT_TESTS) } },
    { test: { name: "behind a pooler", ...tests(ONCE_MORE) } },
  ];
  return { test: { ...run, projects } };
});
