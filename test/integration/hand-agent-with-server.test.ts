import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { ExecutionOutcome, type ExecutionResult } from "../../proto/gen/tendon/v1/hand_pb.js";
import { type ExecuteResponse, HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import type { Platform } from "../kit/platform.ts";

let platform: Platform;
let isRevoked = false;
beforeAll(async () => {
  platform = await startDatabasePlatform({ programs: ["hand-agent"] });
});
afterAll(async () => {
  const stopped = platform?.stop();
  await (isRevoked ? expect(stopped).rejects.toThrow("hand-agent ended with 3") : stopped);
});

/** Each test has a hand of its own. */
async function newHand() {
  const hands = platform.client(HandService);
  const spec = { name: `of ${randomUUID()}`, driver: "process" };
  const { environment } = await platform.client(EnvironmentService).createEnvironment({ spec });
  const request = { requestId: randomUUID(), environmentId: environment!.id };
  const { hand } = await hands.provision(request, { deadlineMs: 30_000 });
  return { hands, handId: hand!.id };
}

type Hands = Awaited<ReturnType<typeof newHand>>["hands"];

interface Call {
  handId: string;
  executionId: string;
  command: string;
  /** Called with all output so far. */
  onOutput?: (output: string) => void;
}

/** Follows one execution to its end. */
async function follow(hands: Hands, { handId, executionId, command, onOutput }: Call) {
  const call = { handId, executionId, name: "bash", input: JSON.stringify({ command }) };
  let output = "";
  let result: ExecutionResult | undefined;
  for await (const { kind } of hands.execute(call, {
    deadlineMs: 60_000,
  }) as AsyncIterable<ExecuteResponse>) {
    if (kind.case === "output") {
      output += Buffer.from(kind.value.data).toString();
      onOutput?.(output);
    } else if (kind.case === "result") result = kind.value;
  }
  return { output, result: result! };
}

/** Follows an execution whose end is not awaited yet; resolves once it has written something. */
async function begin(hands: Hands, call: Call) {
  let written = "";
  const ended = follow(hands, {
    ...call,
    onOutput: (output) => {
      written = output;
    },
  });
  ended.catch(() => {});
  await eventually(() => written !== "");
  return { ended };
}

const outcome = (result: ExecutionResult) => ExecutionOutcome[result.outcome];

test("a call goes from a client through the server to a hand and back", async () => {
  const { hands, handId } = await newHand();
  const { output, result } = await follow(hands, { handId, executionId: "e1-1", command: "echo hello" });
  expect([output, outcome(result), result.isError]).toEqual(["hello\n", "COMPLETED", false]);
  const big = `${"x".repeat(400_000)}`;
  const wrote = await follow(hands, { handId, executionId: "e1-2", command: `echo ${big} | wc -c` });
  expect(wrote.output).toBe("400001\n");
});

test("a call survives the death of the server: the same id gets the rest and one result (X2, R1)", async () => {
  const { hands, handId } = await newHand();
  const command = "echo run >> count; for i in $(seq 1 60); do echo line $i; sleep 0.1; done";
  const first = await begin(hands, { handId, executionId: "e2-1", command });
  await platform.program("server").end("SIGKILL");
  await expect(first.ended).rejects.toThrow();
  await platform.start("server");
  const again = platform.client(HandService);
  const { output, result } = await eventually(() => follow(again, { handId, executionId: "e2-1", command }), {
    withinMs: 60_000,
  });
  expect(output).toBe(Array.from({ length: 60 }, (_, i) => `line ${i + 1}\n`).join(""));
  expect(outcome(result)).toBe("COMPLETED");
  const count = await follow(again, { handId, executionId: "e2-2", command: "wc -l < count" });
  expect(count.output.trim()).toBe("1");
});

test("a killed agent's call ends as unknown, and its hand goes on when the agent is back (R1)", async () => {
  const { hands, handId } = await newHand();
  const command = "echo run >> count; echo begun; sleep 60";
  const call = await begin(hands, { handId, executionId: "e3-1", command });
  await platform.program("hand-agent").end("SIGKILL");
  await platform.start("hand-agent");
  const { result } = await call.ended;
  expect([outcome(result), result.isError]).toEqual(["UNKNOWN", true]);
  const count = await follow(hands, { handId, executionId: "e3-2", command: "wc -l < count" });
  expect(count.output.trim()).toBe("1");
});

test("three hands take turns on one place; each finds its file again and is told that its shell is new (H5, R16)", async () => {
  const hands = platform.client(HandService);
  for (const { id } of (await hands.listHands({})).hands) await hands.releaseHand({ handId: id });
  expect(await platform.program("hand-agent").end("SIGTERM")).toBe(0);
  await platform.start("hand-agent", { TENDON_HAND_AGENT_CAPACITY: "1" });
  const environments = platform.client(EnvironmentService);
  const { environment } = await environments.createEnvironment({ spec: { name: "lasting" } });
  const { environment: brief } = await environments.createEnvironment({
    spec: { name: "brief", idleTimeoutMs: 500n },
  });
  const made: string[] = [];
  for (const name of ["a", "b", "c"]) {
    const request = { requestId: randomUUID(), environmentId: environment!.id };
    const { hand } = await hands.provision(request, { deadlineMs: 30_000 });
    made.push(hand!.id);
    const command = `echo ${name} > file; x=${name}; sleep 600 > /dev/null & cat file`;
    const { output } = await follow(hands, { handId: hand!.id, executionId: `write-${name}`, command });
    expect(output).toBe(`${name}\n`);
  }
  const again = await follow(hands, {
    handId: made[0]!,
    executionId: "again",
    command: 'cat file; echo "x=$x"; pgrep -c sleep',
  });
  expect(again.output).toBe("a\nx=\n0\n");
  expect(again.result.content).toContain("its shell is new");
  const details = async () => {
    const listed = await hands.listHands({});
    return made.map((id) => listed.hands.find((hand) => hand.id === id)!.stateDetail);
  };
  const ended = "1 background process was ended";
  expect((await details()).slice(1)).toEqual(Array(2).fill(`made room for another session; ${ended}`));
  const { hand } = await hands.provision({ requestId: randomUUID(), environmentId: brief!.id });
  made.push(hand!.id);
  expect((await details())[0]).toBe("made room for another session");
  await eventually(async () => (await details())[3] === "idle for 500 ms");
});

test("a revoked agent is cut off and ends with its own status", async () => {
  const { hands } = await newHand();
  const { handAgents } = await hands.listHandAgents({});
  expect(handAgents).toHaveLength(1);
  await platform.client(AdminService).revokeHandAgent({ handAgentId: handAgents[0]!.id });
  expect(await platform.program("hand-agent").ended).toBe(3);
  isRevoked = true;
});
