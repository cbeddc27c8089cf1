import { spawn } from "node:child_process";
import { once } from "node:events";
import { create } from "@bufbuild/protobuf";
import { afterEach, describe, expect, it } from "vitest";
import { TendonError } from "../../kit/errors.ts";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { ReleaseReason } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { gate, text, thinking, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type Rig, type RigOptions, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import { promised } from "../kit/promised.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";

let rig: Rig;
afterEach(() => rig.stop());

const bash: ScriptedTool = ({ command }) => ({ text: `ran ${command}` });
const start = async (options: RigOptions = {}) => {
  rig = await startRig({ server: { tools: { bash } }, ...options });
};

describe("any prefix of a log", () => {
  it("is gone on from: the next request is valid, every call has one result, none runs twice", async () => {
    const script = [
      turn([
        thinking("two"),
        text("Both."),
        toolUse("bash", { command: "a" }),
        toolUse("bash", { command: "b" }),
      ]),
      turn([toolUse("bash", { command: "c" })]),
      turn(["Done."]),
    ];
    await start({ model: { script } });
    const recorded = rig.talk("go");
    await rested(recorded);
    const log = recorded.events.map((event) => create(EventSchema, event));
    await rig.stop();
    // Each conversation goes on where its history is: by its number of answers.
    await start({
      model: {
        script: ({ messages }) =>
          script[messages.filter(({ role }) => role === "assistant").length] ?? turn(["?"]),
      },
    });
    for (let length = 1; length < log.length; length++) {
      const session = rig.resume(log.slice(0, length));
      const label = `after ${length} events, the last a ${log[length - 1]!.type}`;
      await eventually(() => stopReasons(session).length > 0 && !session.isHeld).catch(() => {
        throw new Error(`${label}: ${session.types().slice(length)}`);
      });
      expect(spoken(session).at(-1), label).toBe("Done.");
      expect(stopReasons(session), label).toEqual(["end_turn"]);
      const used = session.events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
      const answered = session.payloads("agent.tool_result").map(({ tool_use_id }) => tool_use_id);
      expect([...answered].sort(), label).toEqual([...used].sort());
      expect(
        used.every((id) => (rig.server.runs.get(`${session.id}/${id}`) ?? 0) <= 1),
        label,
      ).toBe(true);
    }
    expect(rig.api.refusals).toEqual([]);
  });

  it("asks the model for the same bytes again when the holder died during its answer", async () => {
    const held = gate();
    await start({
      model: { script: [turn(["never"], { before: { headers: held.opened } }), turn(["now"])] },
    });
    const session = rig.talk("hi");
    await rig.api.received(1);
    const log = session.events.map((event: Event) => create(EventSchema, event));
    const next = rig.resume(log);
    await rested(next);
    const [first, second] = rig.api.requests;
    expect(second!.body.equals(first!.body)).toBe(true);
    expect(next.payloads("span.model_request_end").map(({ is_error }) => is_error)).toEqual([true, false]);
    held.open();
  });
});

describe("a lease", () => {
  it("that is fenced stops its holder without a word (E1)", async () => {
    const held = gate();
    await start({ model: { script: [turn(["late"], { before: { headers: held.opened } })] } });
    const session = rig.talk("hi");
    await rig.api.received(1);
    session.fence();
    const before = session.types();
    held.open();
    await eventually(() => rig.harness.sessions === 0);
    expect(session.types()).toEqual(before);
    expect(rig.server.releases).toEqual([]);
  });

  it("goes on under the same epoch when the connection broke: nothing is asked or run again (E2)", async () => {
    const answer = gate();
    const tool = gate();
    const waits: ScriptedTool = async () => {
      await tool.opened;
      return { text: "ran" };
    };
    await start({
      // A busy machine may take longer to dial than a server waits.
      server: { tools: { bash: waits }, reattachMs: 60_000 },
      model: {
        script: [turn([toolUse("bash", { command: "a" })], { before: { end: answer.opened } }), turn(["ok"])],
      },
    });
    const session = rig.talk("hi");
    await rig.api.received(1);
    rig.server.cutConnections();
    await eventually(() => rig.server.hellos.length === 2 && rig.harness.isConnected);
    answer.open();
    await eventually(() => rig.server.runs.size === 1);
    rig.server.cutConnections();
    await eventually(() => rig.server.hellos.length === 3 && rig.harness.isConnected);
    tool.open();
    await rested(session);
    expect(session.epoch).toBe(1n);
    expect(rig.server.hellos[1]!.attach).toHaveLength(1);
    expect(rig.api.requests).toHaveLength(2);
    expect([...rig.server.runs.values()]).toEqual([1]);
    expect(session.payloads("span.model_request_end").map(({ is_error }) => is_error)).toEqual([
      false,
      false,
    ]);
  });

  it("lives as long as it is renewed, and ends here when no renewal is confirmed for its whole time", async () => {
    const held = gate();
    await start({
      server: { tools: { bash }, leaseTtlMs: 3_000, reattachMs: 60_000 },
      model: { script: [turn(["ok"], { before: { headers: held.opened } })] },
      settings: { modelTimeoutMs: 60_000, retry: { firstMs: 5, maxMs: 20, totalMs: 60_000 } },
    });
    const session = rig.talk("hi");
    await rig.api.received(1);
    const began = performance.now();
    await eventually(() => performance.now() - began > 5_000);
    expect(rig.harness.sessions).toBe(1);
    await rig.server.stop();
    await eventually(() => rig.harness.sessions === 0);
    expect(session.types()).not.toContain("agent.message");
    held.open();
  });

  it("is given back before a turn of an agent that was changed meanwhile: who takes it next has the new one", async () => {
    const held = gate();
    const answer = turn(["ok"], { before: { headers: held.opened } });
    await start({ model: { script: () => answer } });
    const session = rig.talk("hi");
    await rig.api.received(1);
    session.send({ type: "session.updated", payload: { agent: {} } });
    session.say("and now?");
    held.open();
    await rested(session);
    expect(rig.server.releases.map(({ reason }) => reason)).toEqual([
      ReleaseReason.DRAINING,
      ReleaseReason.IDLE,
    ]);
    expect(session.epoch).toBe(2n);
    expect(rig.api.requests).toHaveLength(2);
  });

  it("survives appends that fail for a while: they are repeated, and stand once (L2)", async () => {
    await start({ model: { script: [turn([toolUse("bash", { command: "a" })]), turn(["ok"])] } });
    let calls = 0;
    rig.server.failAppend = () => {
      calls += 1;
      return calls % 2 === 1 ? new TendonError("UNAVAILABLE", "not now") : undefined;
    };
    const session = rig.talk("hi");
    await rested(session);
    expect(calls).toBeGreaterThan(6);
    expect(session.payloads("agent.tool_use")).toHaveLength(1);
    expect(spoken(session)).toEqual(["ok"]);
  });
});

describe("a harness that stops", () => {
  it("lets a running answer end, then gives the session back; another harness goes on", async () => {
    const held = gate();
    await start({
      // The answer that runs ends as soon as the test says so: however long that is, it is in time.
      harness: { drainMs: 60_000 },
      model: {
        script: [
          turn([toolUse("bash", { command: "a" })], { before: { headers: held.opened } }),
          turn(["ok"]),
        ],
      },
    });
    const session = rig.talk("hi");
    await rig.api.received(1);
    const stopped = rig.harness.stop();
    const other = await rig.addHarness();
    held.open();
    await stopped;
    await rested(session);
    expect(rig.server.releases.map(({ reason }) => reason)).toEqual([
      ReleaseReason.DRAINING,
      ReleaseReason.IDLE,
    ]);
    expect(rig.api.requests).toHaveLength(2);
    expect([...rig.server.runs.values()]).toEqual([1]);
    expect(other.sessions).toBe(0);
  });

  it("does not wait for a model that takes longer than it has, nor for a running call", async () => {
    const held = gate();
    const waits: ScriptedTool = async () => {
      await held.opened;
      return { text: "ran" };
    };
    await start({
      server: { tools: { bash: waits } },
      harness: { drainMs: 200 },
      model: {
        script: ({ messages }) =>
          JSON.stringify(messages).includes("slow model")
            ? turn(["late"], { before: { headers: held.opened } })
            : messages.length === 1
              ? turn([toolUse("bash", { command: "a" })])
              : turn(["ok"]),
      },
    });
    const thinks = rig.talk("slow model");
    const runs = rig.talk("slow tool");
    await eventually(() => rig.server.runs.size === 1 && rig.api.requests.length === 2);
    const began = performance.now();
    await rig.harness.stop();
    expect(performance.now() - began).toBeLessThan(promised(2_000));
    expect(rig.server.releases.map(({ reason }) => reason)).toEqual([
      ReleaseReason.DRAINING,
      ReleaseReason.DRAINING,
    ]);
    await rig.addHarness();
    held.open();
    await rested(thinks);
    await rested(runs);
    expect([...rig.server.runs.values()]).toEqual([1]);
    expect(spoken(runs)).toEqual(["ok"]);
  });
});

describe("a harness that is held up", () => {
  it("for 5 s keeps its connection and its leases, also when that is longer than silence may last (W3)", async () => {
    const held = gate();
    await start({
      server: { tools: { bash }, heartbeatEveryMs: 1_000, heartbeatTimeoutMs: 3_000 },
      model: { script: [turn(["ok"], { before: { end: held.opened } })] },
    });
    await rig.harness.stop();
    const { child } = startProgram({ ANTHROPIC_API_KEY: rig.api.apiKey, ANTHROPIC_BASE_URL: rig.api.url });
    await eventually(() => rig.server.hellos.length === 2, { withinMs: 60_000 });
    const session = rig.talk("hi");
    await rig.api.received(1);
    child.kill("SIGSTOP");
    const began = performance.now();
    await eventually(() => performance.now() - began > 5_000);
    child.kill("SIGCONT");
    // Two looks at the silence, and more.
    await eventually(() => performance.now() - began > 7_000);
    held.open();
    await rested(session);
    expect(session.epoch).toBe(1n);
    expect(rig.server.hellos).toHaveLength(2);
    expect(rig.api.requests).toHaveLength(1);
    child.kill("SIGTERM");
    await once(child, "exit");
  });
});

describe("the harness program", () => {
  it("without a key answers by demo, says so, and ends on SIGTERM with status 0", async () => {
    await start();
    await rig.harness.stop();
    const { child, log } = startProgram({});
    await eventually(() => rig.server.hellos.at(-1)?.modelSource === "demo", { withinMs: 60_000 });
    await eventually(() => log().includes("scripted demo"));
    const session = rig.talk("run: uname -a");
    await rested(session, 1, 60_000);
    expect(rig.server.runs.size).toBe(1);
    child.kill("SIGTERM");
    const [code] = await once(child, "exit");
    expect(code).toBe(0);
  });

  it("with a key never answers by demo, and logs no secret (S2)", async () => {
    await start({ model: { apiKey: "sk-secret", script: () => turn(["real"]) } });
    await rig.harness.stop();
    const { child, log } = startProgram({ ANTHROPIC_API_KEY: "sk-secret", ANTHROPIC_BASE_URL: rig.api.url });
    await eventually(() => rig.server.hellos.at(-1)?.modelSource === "gateway", { withinMs: 60_000 });
    const session = rig.talk("hi");
    await rested(session, 1, 60_000);
    expect(spoken(session)).toEqual(["real"]);
    child.kill("SIGTERM");
    // All that it wrote has been read.
    await once(child, "close");
    expect(log()).not.toMatch(/demo|sk-secret/);
  });
});

function startProgram(environment: Record<string, string>) {
  const child = spawn(process.execPath, ["dist/harness.mjs"], {
    env: { PATH: process.env.PATH, TENDON_HARNESS_KEY: "key", TENDON_URL: rig.server.url, ...environment },
    stdio: ["ignore", "ignore", "pipe"],
  });
  let log = "";
  child.stderr.on("data", (chunk) => {
    log += chunk;
  });
  return { child, log: () => log };
}
