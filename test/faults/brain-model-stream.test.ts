/**
 * A model's stream ends at every byte: the connection breaks, a client interrupts, or the harness is killed (R6). Whatever
 * came of the answer, the next request that is built from the log is one that the API takes, and no call runs twice.
 */
import { afterEach, describe, expect, it } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { type MessagesRequest, type Turn, text, thinking, toolUse, turn } from "../kit/fake-messages-api.ts";
import { isWholeRun, trials } from "../kit/fault-trials.ts";
import { type Rig, type RigOptions, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import { type RunningProgram, startProgram } from "../kit/program.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";
import { seededRandom } from "../kit/seeded-random.ts";

/** Offsets of each kind that are tried in `npm test`; all of them in `npm run test:faults`. */
const SAMPLE = 40;
const AT_ONCE = 100;
const SETTLED_MS = 120_000;
const TIMEOUT_MS = isWholeRun ? 1_200_000 : 240_000;
const IDLE_MODEL = { modelTimeoutMs: 120_000, retry: { firstMs: 5, maxMs: 20, totalMs: 120_000 } };

/** Thinking, text of every width, and two calls whose inputs come in pieces. */
const WHOLE = [
  thinking("Two ", "things, grün ✓."),
  text("Let me ", "look — 你好 🙂."),
  toolUse("bash", { command: "a" }, { pieces: ['{"comm', 'and": "a"', "}"] }),
  toolUse("bash", { command: "bü\u2028🙂" }),
];
const bash: ScriptedTool = ({ command }) => ({ text: `ran ${command}` });

let rig: Rig;
const programs: RunningProgram[] = [];
afterEach(async () => {
  for (const program of programs.splice(0)) await program.end("SIGTERM");
  await rig.stop();
  expect(rig.api.refusals).toEqual([]);
});

const start = async (options: RigOptions) => {
  rig = await startRig({ server: { tools: { bash } }, settings: IDLE_MODEL, ...options });
};
const firstWords = ({ messages }: MessagesRequest) => String(messages[0]!.content[0]!.text ?? "");
const byteOf = (words: string) => Number(/^byte (\d+)$/.exec(words)?.[1] ?? Number.NaN);
const isAnswered = ({ messages }: MessagesRequest) => messages.some(({ role }) => role === "assistant");

/** How many bytes the whole stream has. */
async function streamBytes(): Promise<number> {
  await start({ model: { script: [turn(WHOLE), turn(["ok"])] } });
  await rested(rig.talk("byte 0"));
  const bytes = await eventually(() => rig.api.requests[0]!.responseBytes);
  await rig.stop();
  expect(bytes).toBeGreaterThan(1_500);
  return bytes;
}

/** All offsets, or some of them: the first, the last, and others that differ with the run's seed. */
function offsetsOf(bytes: number): number[] {
  const all = Array.from({ length: bytes + 1 }, (_, at) => at);
  const count = trials(SAMPLE, all.length);
  if (count >= all.length) return all;
  const random = seededRandom();
  const some = new Set([0, 1, bytes - 2, bytes - 1, bytes]);
  while (some.size < count) some.add(random.between(0, bytes));
  return [...some].sort((a, b) => a - b);
}

function* batchesOf(offsets: readonly number[]): Generator<number[]> {
  for (let at = 0; at < offsets.length; at += AT_ONCE) yield offsets.slice(at, at + AT_ONCE);
}

/** Every call that the log has ran once and has one result; nothing of a broken answer is in the log. */
function expectWhole(session: ScriptedSession, offset: number): void {
  const uses = session.events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
  const answered = session.payloads("agent.tool_result").map(({ tool_use_id }) => tool_use_id);
  expect(answered.toSorted(), `byte ${offset}`).toEqual(uses.toSorted());
  for (const id of uses) expect(rig.server.runs.get(`${session.id}/${id}`), `byte ${offset}`).toBe(1);
  expect(session.types().at(-1)).toBe("session.status_idle");
  let isOpen = false;
  for (const { type, payload } of session.events) {
    if (type === "span.model_request_start") isOpen = true;
    if (type !== "span.model_request_end") continue;
    expect(isOpen, `byte ${offset}: every end has its start`).toBe(true);
    isOpen = false;
    expect(JSON.parse(payload).is_error).toBeTypeOf("boolean");
  }
  expect(isOpen, `byte ${offset}: every start has its end`).toBe(false);
}

async function settled(session: ScriptedSession, times: number, offset: number): Promise<void> {
  await rested(session, times, SETTLED_MS).catch(() => {
    const held = `held ${session.isHeld}, epoch ${session.epoch}, ${rig.harness.sessions} run`;
    throw new Error(`byte ${offset} did not come to rest: ${held}; ${session.types()}`);
  });
}

describe("a model's stream", { timeout: TIMEOUT_MS }, () => {
  it.each(["destroy", "end"] as const)("that breaks off at byte n (%s) is asked for again", async (how) => {
    const bytes = await streamBytes();
    const cut = new Set<string>();
    const script = (request: MessagesRequest): Turn => {
      if (isAnswered(request)) return turn(["ok"]);
      const words = firstWords(request);
      if (cut.has(words)) return turn(WHOLE);
      cut.add(words);
      return turn(WHOLE, { breakOff: { atByte: byteOf(words), how } });
    };
    await start({ model: { script } });
    for (const batch of batchesOf(offsetsOf(bytes))) {
      const sessions = batch.map((offset) => ({ offset, session: rig.talk(`byte ${offset}`) }));
      for (const { offset, session } of sessions) {
        await settled(session, 1, offset);
        expectWhole(session, offset);
        expect(session.payloads("agent.tool_use"), `byte ${offset}`).toHaveLength(2);
        expect(spoken(session), `byte ${offset}`).toEqual(["Let me look — 你好 🙂.", "ok"]);
        // Only the whole stream is an answer.
        const failed = session.payloads("span.model_request_end").filter(({ is_error }) => is_error === true);
        expect(failed.length, `byte ${offset}`).toBeGreaterThanOrEqual(offset < bytes - 1 ? 1 : 0);
      }
    }
  });

  it("that a client interrupts at byte n leaves only the span pair, and what is said then is answered", async () => {
    const bytes = await streamBytes();
    const held = new Set<number>();
    const script = (request: MessagesRequest): Turn => {
      if (JSON.stringify(request.messages).includes("go on")) return turn(["ok"]);
      const atByte = byteOf(firstWords(request));
      return turn(WHOLE, { breakOff: { atByte, how: "hold", held: () => held.add(atByte) } });
    };
    await start({ model: { script } });
    for (const batch of batchesOf(offsetsOf(bytes))) {
      const sessions = batch.map((offset) => ({ offset, session: rig.talk(`byte ${offset}`) }));
      await eventually(() => batch.every((offset) => held.has(offset)), { withinMs: 60_000 });
      const message = { type: "user.message", payload: { content: [{ type: "text", text: "go on" }] } };
      for (const { session } of sessions) session.send({ type: "user.interrupt", payload: {} }, message);
      for (const { offset, session } of sessions) {
        await settled(session, 2, offset);
        expectWhole(session, offset);
        expect(spoken(session), `byte ${offset}`).toEqual(["ok"]);
        expect(stopReasons(session), `byte ${offset}`).toEqual(["end_turn", "end_turn"]);
        expect(session.types().filter((type) => type.startsWith("agent."))).toEqual(["agent.message"]);
      }
    }
  });

  it("whose harness is killed at byte n is asked for with the same bytes by the next one (R3)", async () => {
    const bytes = await streamBytes();
    const held = new Set<number>();
    const script = (request: MessagesRequest): Turn => {
      if (isAnswered(request)) return turn(["ok"]);
      const atByte = byteOf(firstWords(request));
      if (held.has(atByte)) return turn(WHOLE);
      return turn(WHOLE, { breakOff: { atByte, how: "hold", held: () => held.add(atByte) } });
    };
    await start({ model: { script } });
    await rig.harness.stop();
    let program = await startHarness();
    for (const batch of batchesOf(offsetsOf(bytes))) {
      const sessions = batch.map((offset) => ({ offset, session: rig.talk(`byte ${offset}`) }));
      await eventually(() => batch.every((offset) => held.has(offset)), { withinMs: 60_000 });
      await program.end("SIGKILL");
      programs.pop();
      program = await startHarness();
      for (const { offset, session } of sessions) {
        await settled(session, 1, offset);
        expectWhole(session, offset);
        // A connection may break once more while the next harness comes up.
        const ends = session.payloads("span.model_request_end").map(({ is_error }) => is_error);
        expect(ends[0], `byte ${offset}`).toBe(true);
        expect(
          ends.filter((isError) => isError === false),
          `byte ${offset}`,
        ).toHaveLength(2);
        expect(spoken(session), `byte ${offset}`).toEqual(["Let me look — 你好 🙂.", "ok"]);
        const asked = rig.api.requests.filter(
          ({ json }) => firstWords(json as unknown as MessagesRequest) === `byte ${offset}`,
        );
        expect(asked.length, `byte ${offset}`).toBeGreaterThanOrEqual(3);
        const again = asked.slice(1, -1).every(({ body }) => body.equals(asked[0]!.body));
        expect(again, `byte ${offset}`).toBe(true);
      }
    }
  });
});

/** The program as it is installed; resolves when the server has welcomed it. */
async function startHarness(): Promise<RunningProgram> {
  const before = rig.server.hellos.length;
  const program = startProgram("harness", {
    TENDON_HARNESS_KEY: "key",
    TENDON_URL: rig.server.url,
    TENDON_MODEL_TIMEOUT_MS: "120000",
    ANTHROPIC_API_KEY: rig.api.apiKey,
    ANTHROPIC_BASE_URL: rig.api.url,
  });
  programs.push(program);
  await eventually(() => rig.server.hellos.length > before, { withinMs: 60_000 });
  return program;
}
