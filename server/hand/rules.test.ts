import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { ExecutionOutcome, ExecutionResultSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ToolUseRecord } from "../store/executions.ts";
import type { HandAgentRecord } from "../store/hand-agents.ts";
import {
  acceptResult,
  failureResult,
  fromStoredText,
  resultEvent,
  resultOfEvent,
  storedText,
} from "./results.ts";
import { callTimeoutMs, checkToolUse, choosePlacement, durationText, parseInput } from "./rules.ts";
import { checkHandTiming, HAND_TIMING } from "./timing.ts";

const process = {
  name: "process",
  available: true,
  detail: "bubblewrap",
  capabilities: [],
  toolsDigest: "d",
};

function agent(id: string, change: Partial<HandAgentRecord> = {}): HandAgentRecord {
  return {
    handAgentId: id,
    workspaceId: "wrkspc_1",
    pool: "",
    name: "",
    labels: {},
    publicKey: new Uint8Array(),
    enrolledAt: new Date(0),
    revokedAt: undefined,
    generation: 1,
    replicaId: "rplc_1",
    journalId: "jrnl_1",
    build: "",
    drivers: [process],
    capacityHands: 2,
    hands: 0,
    lastSeenAt: new Date(0),
    machine: undefined,
    online: true,
    ...change,
  };
}

const anywhere = { driver: "process", pool: "", labels: {}, image: "", memoryBytes: 0 };
const always = () => true;

describe("placement", () => {
  const placed = (agents: HandAgentRecord[], wish = anywhere) => {
    const choice = choosePlacement(wish, agents, always);
    return choice.kind === "place" ? choice.agent.handAgentId : choice.why;
  };

  test("takes the agent with the most room, then the first id, whatever the order", () => {
    const agents = [
      agent("b", { capacityHands: 5, hands: 3 }),
      agent("c", { capacityHands: 4 }),
      agent("a", { capacityHands: 4 }),
    ];
    expect(placed(agents)).toBe("a");
    expect(placed([...agents].reverse())).toBe("a");
    expect(placed([agent("b"), agent("a", { hands: 1 })])).toBe("b");
  });

  test("prefers an agent that has the image, before more room, and waits where memory or disk are short", () => {
    const with1 = { ...process, images: ["app:1"] };
    const agents = [agent("a", { capacityHands: 9 }), agent("b", { drivers: [with1] })];
    expect(placed(agents, { ...anywhere, image: "app:1" })).toBe("b");
    expect(placed(agents, { ...anywhere, image: "app:2" })).toBe("a");
    expect(
      placed([agent("a"), agent("b", { drivers: [with1], hands: 2 })], { ...anywhere, image: "app:1" }),
    ).toBe("a");
    const GiB = 1024 ** 3;
    const machine = {
      cpuMillis: 2_000,
      memoryBytes: 8 * GiB,
      memoryFreeBytes: GiB,
      diskBytes: 0,
      diskFreeBytes: 0,
    };
    const small = agent("a", { machine, capacityHands: 9 });
    expect(placed([small, agent("b")], { ...anywhere, memoryBytes: 2 * GiB })).toBe("b");
    expect(placed([small], { ...anywhere, memoryBytes: GiB })).toBe("a");
    expect(placed([small], { ...anywhere, memoryBytes: 2 * GiB })).toBe(
      "no fitting hand agent has 2048 MiB of memory free",
    );
    const full = { ...machine, diskBytes: 100 * GiB, diskFreeBytes: 1_000 };
    expect(placed([agent("a", { machine: full })])).toContain("less than 256 MiB of disk free");
  });

  test("names the first condition that nobody meets", () => {
    expect(placed([])).toBe("no hand agent has joined the workspace");
    expect(choosePlacement(anywhere, [agent("a", { online: false })], () => false)).toMatchObject({
      why: "no hand agent is online",
    });
    expect(placed([agent("a")], { ...anywhere, pool: "lab" })).toBe(
      'no hand agent in pool "lab" has joined the workspace',
    );
    expect(placed([agent("a", { pool: "lab" })])).toBe(
      "the workspace's hand agents are all in pools, and the environment names none",
    );
    expect(placed([agent("a", { pool: "lab" })], { ...anywhere, pool: "lab" })).toBe("a");
    expect(placed([agent("a")], { ...anywhere, labels: { gpu: "yes" } } as never)).toBe(
      "no online hand agent carries the labels gpu=yes",
    );
    const broken = { ...process, available: false, detail: "no user namespaces" };
    expect(placed([agent("a", { drivers: [broken] })])).toBe(
      'no online hand agent has the driver "process": no user namespaces',
    );
    const emptying = choosePlacement(anywhere, [agent("a", { capacityHands: 0 })], () => true);
    expect(emptying).toMatchObject({ why: "the fitting hand agent is full", full: [] });
    expect(placed([agent("a", { hands: 2 })])).toBe("the fitting hand agent is full");
    expect(placed([agent("a", { hands: 2 }), agent("b", { capacityHands: 0 })])).toBe(
      "all 2 fitting hand agents are full",
    );
  });

  test("a label is not found on an object's prototype", () => {
    expect(placed([agent("a")], { ...anywhere, labels: { constructor: "x" } } as never)).toContain(
      "carries the labels",
    );
  });
});

describe("calls", () => {
  test("inputs are compared by value, not by text", () => {
    const use = {
      type: "agent.tool_use",
      payload: '{"name":"bash","input":{"a":1,"b":[2]}}',
    } as ToolUseRecord;
    const request = { executionId: "sevt_1", name: "bash", slot: "", input: '{ "b": [2], "a": 1 }' };
    expect(() => checkToolUse(use, request)).not.toThrow();
    expect(() => checkToolUse(use, { ...request, input: '{"a":1}' })).toThrow(/another input/);
  });

  test("no hand takes a call that the brain runs itself", () => {
    const payload = `{"name":"bash","runs_in":"brain","input":{}}`;
    const use = { type: "agent.tool_use", payload } as ToolUseRecord;
    const request = { executionId: "sevt_1", name: "bash", slot: "", input: "{}" };
    expect(() => checkToolUse(use, request)).toThrow(/the brain runs itself/);
  });

  test.each(["", "null", "[]", '"x"', "{", "1"])("the input %j is refused", (input) => {
    expect(() => parseInput(input)).toThrow(/^input: must be JSON text/);
  });

  test("an input that is nested beyond every use is refused, however its strings look", () => {
    const nested = (levels: number) => `{"a":${"[".repeat(levels)}${"]".repeat(levels)}}`;
    expect(() => parseInput(nested(100_000))).toThrow(/^input: is nested more than 1000 levels/);
    expect(() => parseInput(nested(1_000))).toThrow(/^input: is nested/);
    expect(parseInput(nested(999))).toHaveProperty("a");
    const text = `${"[".repeat(2_000)}\\"${"{".repeat(2_000)}`;
    expect(parseInput(JSON.stringify({ a: text }))).toEqual({ a: text });
  });

  test("a call's own limit counts when the caller gives none and it makes sense", () => {
    expect(callTimeoutMs(5n, { timeout_ms: 9 })).toBe(5);
    expect(callTimeoutMs(0n, { timeout_ms: 9 })).toBe(9);
    for (const timeout of [0, -1, 1.5, "9", 86_400_001, null]) {
      expect(callTimeoutMs(0n, { timeout_ms: timeout })).toBe(120_000);
    }
  });
});

describe("results", () => {
  const result = create(ExecutionResultSchema, {
    outcome: ExecutionOutcome.COMPLETED,
    content: '[ {"text":"a","type":"text"} ]',
    artefacts: [{ path: "/out", sizeBytes: 3n, sha256: "ff" }],
    exit: { code: -1, signal: "SIGKILL" },
  });

  test("the event holds the content as the agent wrote it, byte for byte", () => {
    const { type, payload } = resultEvent({ executionId: "sevt_1", slot: "web", handId: "hand_1" }, result);
    expect(type).toBe("agent.tool_result");
    expect(payload).toContain('"content":[ {"text":"a","type":"text"} ],');
    expect(JSON.parse(payload)).toMatchObject({
      tool_use_id: "sevt_1",
      is_error: false,
      outcome: "completed",
      hand: "web",
      exit: { code: -1, signal: "SIGKILL" },
      artefacts: [{ path: "/out", bytes: 3, sha256: "ff" }],
    });
    expect(resultOfEvent(payload)).toMatchObject({ isError: false, outcome: ExecutionOutcome.COMPLETED });
  });

  test("what is stored comes back the same", () => {
    expect(fromStoredText(storedText(result))).toEqual(result);
  });

  test("what has to be said first stands first, and an unknown outcome is an error", () => {
    const accepted = acceptResult({ ...result, outcome: ExecutionOutcome.UNKNOWN }, "Note.");
    expect(accepted.isError).toBe(true);
    expect(JSON.parse(accepted.content)).toEqual([
      { type: "text", text: "Note." },
      { text: "a", type: "text" },
    ]);
  });

  test.each(["x", "{}", '[{"type":"tool_use"}]', "[1]", "[null]"])(
    "content %j becomes an error",
    (content) => {
      const accepted = acceptResult({ ...result, content }, "");
      expect(accepted).toMatchObject({
        isError: true,
        failure: { part: "hand_agent", reason: "INVALID_RESULT" },
      });
    },
  );

  test("a failure names its part and reason", () => {
    const failed = failureResult({
      outcome: ExecutionOutcome.NOT_STARTED,
      part: "tunnel",
      reason: "GONE",
      text: "t",
    });
    const { payload } = resultEvent({ executionId: "sevt_1", slot: "" }, failed);
    expect(JSON.parse(payload)).toEqual({
      tool_use_id: "sevt_1",
      content: [{ type: "text", text: "t" }],
      is_error: true,
      outcome: "not_started",
      hand: "",
      failure: { part: "tunnel", reason: "GONE" },
    });
  });
});

test("the times that the product uses find a half-open connection within 30 s, and others are refused (H3)", () => {
  expect(() => checkHandTiming(HAND_TIMING)).not.toThrow();
  expect(() => checkHandTiming({ ...HAND_TIMING, heartbeatTimeoutMs: 26_000 })).toThrow(/30 s/);
  expect(() => checkHandTiming({ ...HAND_TIMING, heartbeatEveryMs: 10_000 })).toThrow(/lost heartbeat/);
});

test("durations are said in the largest unit that fits exactly", () => {
  const said = [1_800_000, 90_000, 7_200_000, 86_400_000, 7 * 86_400_000, 1_500, 0].map(durationText);
  expect(said).toEqual(["30 min", "90 s", "2 h", "1 day", "7 days", "1500 ms", "0 ms"]);
});
