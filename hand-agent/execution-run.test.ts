import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { createLogger } from "../kit/log.ts";
import { StartExecutionSchema } from "../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { ExecutionOutcome } from "../proto/gen/tendon/v1/hand_pb.js";
import { FakeClock } from "../test/kit/fake-clock.ts";
import type { Hand } from "./drivers/driver.ts";
import { Execution, LateInput } from "./execution.ts";
import { type RunDeps, runExecution } from "./execution-run.ts";
import { HandRefusal } from "./hand-refusal.ts";
import { JournalError } from "./journal.ts";
import { textResult } from "./result.ts";
import { HandTools } from "./tools/hand-tools.ts";

const clock = new FakeClock();
const command = {
  ...create(StartExecutionSchema, { name: "bash" }),
  key: "s/1",
  handId: "hand_1",
  timeoutMs: 0,
  traceParent: "",
};

/** What the run asks for, in order; each answer is given by the test. */
function run(options: Partial<RunDeps> = {}, execution = new Execution({ key: "s/1", handId: "hand_1" })) {
  const steps: string[] = [];
  let synced!: () => void;
  let syncFailed!: (error: Error) => void;
  const hand = {} as Hand;
  const deps: RunDeps = {
    journal: {
      start: () =>
        new Promise<void>((resolve, reject) => {
          steps.push("journal");
          synced = resolve;
          syncFailed = reject;
        }),
    },
    hands: { use: async () => ({ hand, tools: new HandTools(hand, clock), isNews: false }) },
    executeTool: async () => {
      steps.push("tool");
      return textResult("ran");
    },
    clock,
    log: createLogger("test", "silent"),
    ...options,
  };
  const ended = runExecution(deps, execution, command, "{}");
  return { steps, ended, execution, sync: () => synced(), failSync: (error: Error) => syncFailed(error) };
}

test("nothing starts before the journal entry is on disk (X1b)", async () => {
  const { steps, ended, sync } = run();
  await clock.advance(60_000);
  expect(steps).toEqual(["journal"]);
  sync();
  const { result, journalled } = await ended;
  expect(steps).toEqual(["journal", "tool"]);
  expect([result.outcome, journalled]).toEqual([ExecutionOutcome.COMPLETED, true]);
});

test("a journal that cannot be written starts nothing", async () => {
  const { steps, ended, failSync } = run();
  await clock.advance(1);
  failSync(new JournalError("the journal cannot be written: no space left"));
  const { result, journalled } = await ended;
  expect(steps).toEqual(["journal"]);
  expect([result.outcome, result.failure?.reason, journalled]).toEqual([
    ExecutionOutcome.NOT_STARTED,
    "JOURNAL_FAILED",
    false,
  ]);
});

test("a call that is cancelled while the journal writes does not start", async () => {
  const { steps, ended, sync, execution } = run();
  await clock.advance(1);
  execution.stop("the user pressed escape");
  sync();
  const { result } = await ended;
  expect(steps).toEqual(["journal"]);
  expect(result.content).toContain("the user pressed escape");
});

test("a refused hand starts nothing", async () => {
  const use = async () => {
    throw new HandRefusal("OWNER_CHANGED", "not yours");
  };
  const { steps, ended, sync } = run({ hands: { use } });
  await clock.advance(1);
  sync();
  expect((await ended).result).toMatchObject({
    outcome: ExecutionOutcome.NOT_STARTED,
    failure: { reason: "OWNER_CHANGED" },
  });
  expect(steps).toEqual(["journal"]);
});

test("an input that never comes whole starts nothing, and the call ends", async () => {
  const input = new LateInput(10);
  const { steps, ended } = run({}, new Execution({ key: "s/1", handId: "hand_1", input }));
  input.push(Buffer.from("12345"));
  await clock.advance(60_000);
  expect((await ended).result.failure?.reason).toBe("INPUT_INCOMPLETE");
  expect(steps).toEqual([]);
});

test("an input whose stream broke starts over on the next one", async () => {
  const input = new LateInput(4);
  input.push(Buffer.from("ab"));
  input.restart();
  input.push(Buffer.from("wxyz"));
  expect(await input.text).toBe("wxyz");
});

test("a tool that does not obey a cancellation still ends in a result", async () => {
  const { ended, sync, execution } = run({ executeTool: () => new Promise(() => {}) });
  await clock.advance(1);
  sync();
  await clock.advance(1);
  execution.stop("interrupt");
  await clock.advance(8_000);
  const { result } = await ended;
  expect([result.outcome, result.isError]).toEqual([ExecutionOutcome.UNKNOWN, true]);
});
