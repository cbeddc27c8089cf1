/** Parts are made to fail one by one; `tendon session trace` names the one that did, from the log alone. */
import { execFile } from "node:child_process";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { failuresOf } from "../kit/failures.ts";
import {
  type FakeMessagesApi,
  followInstructions,
  hang,
  overloaded,
  startFakeMessagesApi,
} from "../kit/fake-messages-api.ts";
import { FaultPlatform } from "../kit/fault-platform.ts";

vi.setConfig({ testTimeout: 180_000, hookTimeout: 180_000 });

const run = promisify(execFile);
const TENDON = fileURLToPath(new URL("../../dist/tendon.mjs", import.meta.url));
const SAID = "marzipan";

let faults: FaultPlatform;
let model: FakeMessagesApi;
/** How the model fails the next requests that say "fail". */
let failing = 0;
beforeAll(async () => {
  model = await startFakeMessagesApi({
    script: (request) => {
      if (failing === 0) return followInstructions(request);
      failing -= 1;
      return JSON.stringify(request.messages).includes("hang") ? hang : overloaded();
    },
  });
  faults = await FaultPlatform.start({
    harness: {
      ANTHROPIC_BASE_URL: model.url,
      ANTHROPIC_API_KEY: model.apiKey,
      TENDON_MODEL_RETRY_FIRST_MS: "20",
    },
  });
});
afterAll(async () => {
  await faults?.stop();
  await model?.stop();
});

async function tendon(...args: string[]): Promise<string> {
  const { platform } = faults;
  const env = { PATH: process.env.PATH, TENDON_URL: platform.url, TENDON_API_KEY: platform.adminKey };
  return (await run(process.execPath, [TENDON, ...args], { env })).stdout;
}

/** The failures that the drawing tells, and that those of the log are all named. */
async function drawnFailures(sessionId: string): Promise<string> {
  const unnamed = failuresOf(await faults.rested(sessionId)).filter((one) => one.includes("not named"));
  expect(unnamed).toEqual([]);
  const drawing = await tendon("session", "trace", sessionId);
  return drawing.trimEnd().split("\n").at(-1) ?? "";
}

const beganToAsk = (sessionId: string) =>
  eventually(async () =>
    (await faults.events(sessionId)).some(({ type }) => type === "span.model_request_start"),
  );

test("a turn in which nothing failed is drawn part by part, without a word that was said unless asked", async () => {
  const sessionId = await faults.newSession(`run: echo ${SAID}`);
  expect(await drawnFailures(sessionId)).toBe("no failures");
  const drawing = await tendon("session", "trace", sessionId);
  expect(drawing).toMatch(/turn 1 {2}trace [0-9a-f]{32} /);
  for (const part of ["client", "harness", "model", "hand agent", "sandbox"]) {
    expect(drawing).toMatch(new RegExp(`^ .*\\d m?s +${part} `, "m"));
  }
  expect(drawing).not.toContain(SAID);
  expect(await tendon("session", "trace", sessionId, "--payloads")).toContain(SAID);
  const json = await tendon("session", "trace", sessionId, "--json");
  expect(json).not.toContain(SAID);
  expect(JSON.parse(json)).toMatchObject({
    session_id: sessionId,
    turns: [{ turn: 1, stop_reason: "end_turn" }],
  });
});

test("an overloaded model is named as the model", async () => {
  failing = 2;
  const sessionId = await faults.newSession("fail twice");
  expect(await drawnFailures(sessionId)).toMatch(/^failures: 2× model, MODEL_OVERLOADED \(last at #\d+\)$/);
});

test("a command that fails is named as the sandbox", async () => {
  const sessionId = await faults.newSession("run: exit 3");
  expect(await drawnFailures(sessionId)).toMatch(/^failures: 1× sandbox, TOOL_FAILED/);
});

test("a harness that is killed while its model thinks is named as the harness", async () => {
  failing = 1;
  const sessionId = await faults.newSession("hang");
  await beganToAsk(sessionId);
  await eventually(() => failing === 0);
  await faults.platform.program("harness").end("SIGKILL");
  await faults.platform.start("harness");
  expect(await drawnFailures(sessionId)).toMatch(/^failures: 1× harness, HARNESS_GONE/);
});

test("a hand agent that is killed in the middle of a call is named as the hand agent", async () => {
  const sessionId = await faults.newSession("run: echo begun > begun; sleep 60");
  await eventually(async () =>
    (await faults.events(sessionId)).some(({ type }) => type === "hand.provisioned"),
  );
  await eventually(async () => (await tendon("session", "trace", sessionId)).includes("sandbox"));
  await faults.platform.program("hand-agent").end("SIGKILL");
  await faults.platform.start("hand-agent");
  const failures = (await drawnFailures(sessionId))
    .replaceAll(/^failures: | \(last at #\d+\)/g, "")
    .split("; ");
  // Away for more than 5 s it is named for that too; nobody else is.
  expect(failures.toSorted().join()).toMatch(
    /^(1× hand agent, HAND_AGENT_OFFLINE,)?1× hand agent, OUTCOME_UNKNOWN$/,
  );
});
