/**
 * A harness is killed at points of a turn of the claude-code loop; another one goes on from the log (R6): each tool runs
 * once, the model gets what it gave, and neither the program nor its files outlive their harness. And a stream of the
 * model breaks off: nothing of it counts.
 */
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, describe, expect, it } from "vitest";
import { eventually } from "../kit/eventually.ts";
import {
  type MessagesRequest,
  type Script,
  startFakeMessagesApi,
  type Turn,
  text,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { trials } from "../kit/fault-trials.ts";
import { rested, spoken } from "../kit/harness-rig.ts";
import { commandsWith } from "../kit/process-list.ts";
import { type RunningProgram, startProgram } from "../kit/program.ts";
import { startScriptedServer } from "../kit/scripted-harness-server.ts";

const SETTLED_MS = 120_000;
/** A harness appends the request, its answer, the next request, and that answer. The most telling points come first. */
const POINTS = [
  ["the calls are in the log and nobody has sent them", "harness.appended=kill@2"],
  ["a result has come and nobody has told the model", "harness.result_received=kill"],
  ["its model's calls are not in the log", "harness.before_append=kill@2"],
  ["a call is bound and runs", "harness.dispatched=kill"],
  ["a call is about to be sent", "harness.before_dispatch=kill@2"],
  ["the next request is in the log", "harness.appended=kill@3"],
  ["the last answer is not in the log", "harness.before_append=kill@4"],
  ["the last answer is in the log", "harness.appended=kill@4"],
] as const;

const stops: (() => Promise<unknown> | unknown)[] = [];
afterEach(async () => {
  for (const stop of stops.splice(0).reverse()) await stop();
});

const CALL = "mcp__tendon__bash";
const ANSWER = turn([text("Look."), toolUse(CALL, { command: "a" }), toolUse(CALL, { command: "b" })]);
const isAnswered = ({ messages }: MessagesRequest) => JSON.stringify(messages).includes('"tool_result"');
const script = (request: MessagesRequest): Turn => (isAnswered(request) ? turn([text("Done.")]) : ANSWER);

/** "byte 900 end": the first answer breaks off there. What the SDK then asks by itself is never answered. */
function breaking() {
  const broken = new Set<string>();
  return (request: MessagesRequest): Turn => {
    const all = JSON.stringify(request.messages);
    const [, words = "", byte, how] = /(byte (\d+) (end|destroy))/.exec(all) ?? [];
    if (isAnswered(request)) return turn([text("Done.")]);
    if (all.includes("cut off mid-stream")) return { kind: "hang" };
    if (broken.has(words)) return ANSWER;
    broken.add(words);
    return { ...ANSWER, breakOff: { atByte: Number(byte), how: how as "end" | "destroy" } };
  };
}

async function place(answers: Script = script) {
  const api = await startFakeMessagesApi({ script: answers });
  stops.push(() => api.stop());
  const server = await startScriptedServer({
    tools: { bash: ({ command }) => ({ text: `ran ${command}` }) },
    reattachMs: 50,
  });
  stops.push(() => server.stop());
  const directory = mkdtempSync(join(tmpdir(), "loop-kills-"));
  stops.push(async () => {
    // Programs of a harness that is gone end after it, and write there until then.
    await eventually(() => commandsWith(directory).length === 0);
    rmSync(directory, { recursive: true, force: true });
  });
  const startHarness = (failpoints: string): RunningProgram => {
    const program = startProgram("harness", {
      TENDON_URL: server.url,
      TENDON_HARNESS_KEY: "test",
      TENDON_LOG_LEVEL: "warn",
      TENDON_MODEL: "claude-test",
      TENDON_FAILPOINTS: failpoints,
      ANTHROPIC_API_KEY: api.apiKey,
      ANTHROPIC_BASE_URL: api.url,
      TMPDIR: directory,
    });
    stops.push(() => program.end("SIGTERM"));
    return program;
  };
  return { api, server, directory, startHarness };
}

describe("a harness with the claude-code loop is killed when", () => {
  it.each(POINTS.slice(0, trials(2, POINTS.length)))(
    "%s, and another goes on",
    { timeout: 300_000 },
    async (_, failpoint) => {
      const { api, server, directory, startHarness } = await place();
      const session = server.createSession({ loop: "claude-code", system: "Be careful." });
      const first = startHarness(failpoint);
      session.say("go");
      expect(await first.ended).toBe("SIGKILL");
      await eventually(() => commandsWith(directory).length === 0, { withinMs: SETTLED_MS });
      await eventually(() => readdirSync(directory).length === 0, { withinMs: SETTLED_MS });
      startHarness("");
      await rested(session, 1, SETTLED_MS);
      expect(spoken(session)).toEqual(["Look.", "Done."]);
      const uses = session.events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
      expect(uses).toHaveLength(2);
      expect(
        session
          .payloads("agent.tool_result")
          .map(({ tool_use_id }) => tool_use_id)
          .toSorted(),
      ).toEqual(uses.toSorted());
      expect(Object.fromEntries(server.runs)).toEqual(
        Object.fromEntries(uses.map((id) => [`${session.id}/${id}`, 1])),
      );
      const asked = api.requests.map(({ json }) => JSON.stringify(json?.messages));
      expect(asked.at(-1)).toMatch(/"ran a".*"ran b"/s);
      expect(api.refusals).toEqual([]);
      await eventually(() => commandsWith(directory).length === 0 && readdirSync(directory).length === 0);
    },
  );
});

/** Of the answer's some 2,000 bytes. */
const OFFSETS = [1_300, 1_700, 0, 400, 700, 900, 1_000, 1_100, 1_200, 1_400, 1_500, 1_600, 1_800, 1_900];

describe("the claude-code loop, when the stream of its model's answer breaks off", () => {
  it("leaves nothing of it in the log, and asks again", { timeout: 600_000 }, async () => {
    const { api, server, startHarness } = await place(breaking());
    const offsets = OFFSETS.slice(0, trials(2, OFFSETS.length));
    const words = offsets.flatMap((at, i) =>
      (trials(1, 2) === 2 ? ["end", "destroy"] : [i === 0 ? "end" : "destroy"]).map(
        (how) => `byte ${at} ${how}`,
      ),
    );
    const sessions = words.map((text) => {
      const session = server.createSession({ loop: "claude-code", system: "Be careful." });
      session.say(text);
      return session;
    });
    startHarness("");
    for (const [i, session] of sessions.entries()) {
      await rested(session, 1, SETTLED_MS);
      expect(spoken(session), words[i]!).toEqual(["Look.", "Done."]);
      expect(session.payloads("session.error"), words[i]!).toHaveLength(1);
      const uses = session.events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
      expect(
        uses.map((id) => server.runs.get(`${session.id}/${id}`)),
        words[i]!,
      ).toEqual([1, 1]);
    }
    expect(api.refusals).toEqual([]);
  });
});
