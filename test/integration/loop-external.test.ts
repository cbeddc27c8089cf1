import { randomUUID } from "node:crypto";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { afterEach, describe, expect, it } from "vitest";
import { createExternalLoop } from "../../harness/loops/external/external-loop.ts";
import { parseProgramTable } from "../../harness/loops/external/program-table.ts";
import { systemClock } from "../../kit/clock.ts";
import { type AgentSpec, Permission, QueuedMessages } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import { type Rig, type RigOptions, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import { define, ends, verdict } from "../kit/outcome-session.ts";
import { commandsWith } from "../kit/process-list.ts";
import { startProgram } from "../kit/program.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

const examples = fileURLToPath(new URL("../../examples/loops", import.meta.url));
const mark = `tendon-test-${randomUUID()}`;
/** Programs of shell lines. `read_step` reads up to the line that asks for a step. */
const READ_STEP = `read_step() { while IFS= read -r line; do case $line in '{"type":"step"'*) return 0;; esac; done; exit 0; }`;
const shell = (script: string) => ({ command: ["sh", "-c", `${READ_STEP}\n${script}`, mark] });
/** Writes one line in which `nest` is what no program can write out again. */
const deep = (line: string) => ({
  command: [
    process.execPath,
    "-e",
    `const nest = "[".repeat(200000) + "]".repeat(200000); console.log(${line}); setInterval(() => {}, 1000);`,
    mark,
  ],
});

const PROGRAMS = {
  checklist: { command: ["python3", `${examples}/checklist.py`] },
  look: { command: [`${examples}/look.sh`] },
  once: shell(`read_step; echo '{"type":"message","text":"one answer"}'; echo '{"type":"end"}'`),
  echo: {
    command: [
      process.execPath,
      "-e",
      `
      let told = [];
      require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
        const said = JSON.parse(line);
        told.push(said);
        if (said.type !== "step") return;
        const secrets = Object.keys(process.env).sort();
        console.log(JSON.stringify({ type: "message", text: JSON.stringify({ pid: process.pid, told, secrets }) }));
        console.log(JSON.stringify({ type: "end", keep: { steps: said.step, mine: "kept" } }));
        told = [];
      });`,
      mark,
    ],
    env: { MODE: "plain" },
  },
  many: {
    command: [
      process.execPath,
      "-e",
      `
      let limits;
      require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
        const said = JSON.parse(line);
        limits ??= said.limits;
        if (said.type !== "step") return;
        const calls = Array.from({ length: limits.parts }, () => ({ type: "call", name: "nothing", input: {} }));
        const parts = said.step === 1 ? calls : [{ type: "message", text: String(limits.parts) }];
        for (const part of [...parts, { type: "end" }]) console.log(JSON.stringify(part));
      });`,
      mark,
    ],
  },
  garbage: shell(`read_step; echo 'hello there'; sleep 60`),
  endless: shell(`read_step; yes xxxxxxxxxxxxxxxx | tr -d '\\n'`),
  silent: shell(`read_step; sleep 60`),
  deaf: shell(`sleep 60`),
  early: shell(`read_step; echo '{"type":"preview","text":"I"}'; echo oops >&2; exit 7`),
  chatty: shell(
    `read_step; echo '{"type":"message","text":"a"}'; echo '{"type":"end"}'; echo '{"type":"message","text":"b"}'; sleep 60`,
  ),
  missing: { command: ["/nonexistent/loop"] },
  nested: deep(`'{"type":"call","name":"bash","input":{"a":' + nest + '}}'`),
  nested_kept: deep(`'{"type":"end","keep":' + nest + '}'`),
  overloaded: shell(
    `read_step; echo '{"type":"fail","reason":"overloaded","message":"too busy"}'; read_step; echo '{"type":"message","text":"now"}'; echo '{"type":"end"}'; read_step`,
  ),
  both: shell(
    `read_step
     echo '{"type":"call","name":"bash","input":{"command":"a"}}'; echo '{"type":"call","name":"nothing","input":{}}'
     echo '{"type":"end"}'; read_step; echo '{"type":"message","text":"both"}'; echo '{"type":"end"}'; read_step`,
  ),
};

let rig: Rig;
afterEach(async () => {
  await rig.stop();
  await eventually(() => commandsWith(mark).length === 0 && commandsWith(examples).length === 0);
});

const bash: ScriptedTool = ({ command }) => ({ text: `ran ${command}`, isError: command === "false" });
const loopOf = (maxProcesses = 20) =>
  createExternalLoop({
    programs: parseProgramTable(JSON.stringify(PROGRAMS)),
    environment: { PATH: process.env.PATH ?? "" },
    maxProcesses,
    clock: systemClock,
  });
const start = async (options: RigOptions = {}, maxProcesses?: number) => {
  rig = await startRig({ server: { tools: { bash } }, loops: [loopOf(maxProcesses)], ...options });
};
const agent = (program: keyof typeof PROGRAMS | "unknown", more: object = {}): Partial<AgentSpec> => ({
  loop: "external",
  loopSettings: JSON.stringify({ program, ...more }),
});
const told = (session: ScriptedSession) => spoken(session).map((text) => JSON.parse(text));
const errors = (session: ScriptedSession) =>
  session.payloads("session.error").map(({ error }) => error as Record<string, unknown>);

describe("the examples", () => {
  it("in Python runs its list with the session's hand, and stops at the first that fails", async () => {
    await start();
    const session = rig.talk("go", agent("checklist", { commands: ["make", "make test"] }));
    await rested(session);
    expect(session.payloads("agent.tool_use").map(({ input }) => input)).toEqual([
      { command: "make" },
      { command: "make test" },
    ]);
    expect(spoken(session)).toEqual(["All 2 commands ran."]);
    const failing = rig.talk("go", agent("checklist", { commands: ["false", "never"] }));
    await rested(failing);
    expect(spoken(failing)).toEqual(["Stopped: `false` failed."]);
  });

  it("in plain shell shows what it is about to say, calls and answers", async () => {
    await start();
    const session = rig.talk("go", agent("look"));
    await rested(session);
    expect(spoken(session)).toEqual(["Looking at the disk.", "The result above is what df says."]);
    const shown = rig.server.previews.map(({ preview }) => preview.kind);
    expect(shown.map(({ value }) => (value as { eventId: string }).eventId)).toContain(
      session.events.find(({ type }) => type === "agent.message")!.id,
    );
  });

  it("go on in another harness from what the log says, each call run once (R3)", async () => {
    let release = () => {};
    const slow: ScriptedTool = ({ command }) =>
      command === "2"
        ? new Promise((resolve) => {
            release = () => resolve({ text: "ran 2" });
          })
        : { text: `ran ${command}` };
    await start({ server: { tools: { bash: slow }, reattachMs: 50 } });
    const session = rig.talk("go", agent("checklist", { commands: ["1", "2", "3"] }));
    await eventually(() => rig.server.runs.size === 2);
    const first = commandsWith(`${examples}/checklist.py`);
    await rig.addHarness();
    await rig.harness.stop();
    release();
    await rested(session);
    expect(spoken(session)).toEqual(["All 3 commands ran."]);
    expect([...rig.server.runs.values()]).toEqual([1, 1, 1]);
    await eventually(() => !commandsWith(`${examples}/checklist.py`).some((pid) => first.includes(pid)));
  });
});

describe("a program", () => {
  it("is told the agent, its tools and every event once, without what only brains may see", async () => {
    await start();
    const session = rig.talk("hi", { ...agent("echo", { colour: "red" }), system: "Be brief." });
    await rested(session);
    session.say("again");
    await rested(session, 2);
    const [first, second] = told(session);
    expect(first.told[0]).toEqual({
      type: "hello",
      protocol: 1,
      session_id: session.id,
      agent: {
        id: "agent_1",
        version: 1,
        name: "test",
        model: "",
        system: "Be brief.",
        settings: { program: "echo", colour: "red" },
      },
      tools: [{ name: "bash", description: "Runs bash.", input_schema: expect.anything() }],
      mcp_servers: [],
      limits: expect.anything(),
    });
    const events = first.told.filter(({ type }: { type: string }) => type === "event");
    expect(events.map(({ event }: { event: { type: string } }) => event.type)).toEqual([
      "user.message",
      "brain.inputs_consumed",
      "span.model_request_start",
    ]);
    expect(first.told.at(-1)).toEqual({ type: "step", step: 1, max_silence_ms: expect.any(Number) });
    // A new lease, so a new process, which is told all from the start, and finds what it kept.
    const again = second.told.filter(({ type }: { type: string }) => type === "event");
    const positions = again.map(({ event }: { event: { position: number } }) => event.position);
    expect(positions).toEqual([...positions].sort((a, b) => a - b));
    const kept = again.filter(({ event }: { event: { kept?: unknown } }) => event.kept !== undefined);
    expect(kept.map(({ event }: { event: { kept: unknown } }) => event.kept)).toEqual([
      { steps: 1, mine: "kept" },
    ]);
    expect(JSON.stringify(second.told)).not.toContain("internal");
    expect(
      session.events.every(({ payload }) => !payload.includes('"kept"') || payload.includes("told")),
    ).toBe(true);
  });

  it("has an environment of its own, in which nothing of the harness stands", async () => {
    await start();
    const session = rig.talk("hi", agent("echo"));
    await rested(session);
    expect(told(session)[0].secrets).toEqual(
      ["HOME", "MODE", "PATH", "PWD", "TMPDIR"].filter((name) => told(session)[0].secrets.includes(name)),
    );
    expect(told(session)[0].secrets).toContain("MODE");
  });

  it("may end after each answer, and waits for results like any loop, with calls that cannot run answered", async () => {
    await start();
    const session = rig.talk("hi", agent("once"));
    await rested(session);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    const calls = rig.talk("hi", agent("both"));
    await rested(calls);
    expect(spoken(calls)).toEqual(["both"]);
    expect(
      calls
        .payloads("agent.tool_result")
        .map(({ is_error }) => is_error ?? false)
        .sort(),
    ).toEqual([false, true]);
  });

  it("may propose as many parts as it is told, also when none of the calls can run", async () => {
    await start();
    const session = rig.talk("hi", agent("many"));
    await rested(session);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    expect(spoken(session)).toEqual([String(session.payloads("agent.tool_result").length)]);
  });

  it("asks for a confirmation as the agent's policy says, and runs on in a new process after it", async () => {
    await start();
    const tools = [
      { kind: { case: "handToolset", value: { defaultPolicy: { permission: Permission.ALWAYS_ASK } } } },
    ] as unknown as AgentSpec["tools"];
    const session = rig.talk("hi", { ...agent("look"), tools });
    await rested(session);
    expect(stopReasons(session)).toEqual(["requires_action"]);
    await eventually(() => commandsWith(`${examples}/look.sh`).length === 0);
    const [call] = session.events.filter(({ type }) => type === "agent.tool_use");
    session.send({ type: "user.tool_confirmation", payload: { tool_use_id: call!.id, result: "allow" } });
    await rested(session, 2);
    expect(spoken(session)).toHaveLength(2);
    expect([...rig.server.runs.values()]).toEqual([1]);
  });

  it("is killed with its children when a client interrupts, and the turn ends", async () => {
    await start();
    const session = rig.talk("hi", agent("silent"));
    await eventually(() => commandsWith(mark).length > 0);
    session.send({ type: "user.interrupt", payload: {} });
    await rested(session);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    await eventually(() => commandsWith(mark).length === 0);
  });

  it("is one of a bounded number: others wait, and resting ones make room", async () => {
    await start({}, 1);
    const sessions = [1, 2, 3, 4].map((n) => rig.talk(`hi ${n}`, agent("look")));
    for (const session of sessions) await rested(session);
    expect(sessions.map((session) => spoken(session).length)).toEqual([2, 2, 2, 2]);
  });

  it("takes messages that come during a turn with its next step, where the agent wants that", async () => {
    const gate = { open: () => {} };
    const slow: ScriptedTool = () =>
      new Promise((resolve) => {
        gate.open = () => resolve({ text: "ran" });
      });
    await start({ server: { tools: { bash: slow } } });
    const queuedMessages = QueuedMessages.NEXT_STEP;
    const session = rig.talk("go", { ...agent("checklist", { commands: ["1"] }), queuedMessages });
    await eventually(() => rig.server.runs.size === 1);
    session.say("once more");
    gate.open();
    await rested(session);
    expect(session.payloads("brain.inputs_consumed").map(({ turn }) => turn)).toEqual([1, 1]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
  });
});

describe("an outcome", () => {
  it("is told to the program as a user's words, and so is what was found wanting; a model of the harness's own judges it", async () => {
    await start({
      model: { script: [verdict(false, true), verdict(true, true)], models: ["claude-grader"] },
      settings: { graderModel: "claude-grader" },
    });
    const model = { id: "somebody-elses-model" } as AgentSpec["model"];
    const session = rig.server.createSession({ ...agent("echo"), ...(model && { model }) });
    const id = define(session, "Paint a ball.");
    await rested(session);
    expect(ends(session).map(({ result }) => result)).toEqual(["needs_revision", "satisfied"]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    expect(session.payloads("span.outcome_evaluation_start").map(({ model }) => model)).toEqual([
      "claude-grader",
      "claude-grader",
    ]);
    const [first, second] = told(session);
    const messages = ({ told }: { told: { event?: { type: string } }[] }) =>
      told.flatMap(({ event }) => (event?.type === "user.message" ? [event] : []));
    expect(messages(first)).toMatchObject([
      { id, payload: { content: [{ text: expect.stringContaining("Paint a ball.") }] } },
    ]);
    expect(messages(second)).toMatchObject([
      {
        payload: {
          content: [{ text: expect.stringContaining("not met: It is blue.") }],
          from_evaluation: true,
        },
      },
    ]);
    // The same process: what it is told is what is new.
    expect(second.pid).toBe(first.pid);
  });

  it("that the program never reaches ends after its iterations, whoever the programs are", async () => {
    await start({ model: { script: () => verdict(false, false) } });
    const session = rig.server.createSession(agent("look"));
    define(session, "Paint a ball.", { max_iterations: 2 });
    await rested(session);
    expect(ends(session).map(({ result }) => result)).toEqual(["needs_revision", "max_iterations_reached"]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
  });
});

describe("a program that does not keep to the protocol", () => {
  it.each([
    ["garbage", "LOOP_BAD_LINE", /not JSON/],
    ["endless", "LOOP_LINE_TOO_LONG", /more than 1048576 bytes/],
    ["nested", "LOOP_BAD_LINE", /nested/],
    ["nested_kept", "LOOP_BAD_LINE", /nested/],
    ["silent", "LOOP_SILENT", /silent for \d+ ms/],
    ["deaf", "LOOP_SILENT", /silent for \d+ ms/],
    ["early", "LOOP_EXITED", /exit code 7/],
    ["missing", "LOOP_EXITED", /exit code 127/],
  ] as const)(
    "%s fails with its part and reason, is tried a few times and given up: %s",
    async (program, reason, text) => {
      // The others must have said what they say before.
      await start({ settings: { modelTimeoutMs: reason === "LOOP_SILENT" ? 400 : 60_000 } });
      const session = rig.talk("hi", agent(program));
      await rested(session);
      expect(stopReasons(session)).toEqual(["retries_exhausted"]);
      const failures = errors(session);
      expect(failures.map(({ type, part, reason: code }) => [type, part, code])).toEqual(
        failures.map(() => ["loop_failed_error", "harness", reason]),
      );
      expect(failures.length).toBeGreaterThan(1);
      expect(failures.length).toBeLessThanOrEqual(3);
      expect(failures[0]!.message).toMatch(text);
      expect(JSON.stringify(session.events.map(({ payload, internal }) => payload + internal))).not.toContain(
        "oops",
      );
      await eventually(() => commandsWith(mark).length === 0);
    },
  );

  it("between two steps is started anew for the next", async () => {
    await start();
    const session = rig.talk("hi", agent("chatty"));
    await rested(session);
    expect(spoken(session)).toEqual(["a"]);
    expect(errors(session)).toEqual([]);
  });

  it("is told from one whose model failed, which is asked again as models are", async () => {
    await start();
    const session = rig.talk("hi", agent("overloaded"));
    await rested(session);
    expect(errors(session)).toMatchObject([
      {
        type: "model_overloaded_error",
        message: "too busy",
        part: "model",
        retry_status: { type: "retrying" },
      },
    ]);
    expect(spoken(session)).toEqual(["now"]);
  });

  it("is not asked for by agents that name none, or one that is not configured", async () => {
    await start();
    const unknown = rig.talk("hi", agent("unknown"));
    const none = rig.talk("hi", { loop: "external", loopSettings: "" });
    for (const session of [unknown, none]) {
      await rested(session);
      expect(errors(session)).toMatchObject([
        { reason: "LOOP_NOT_CONFIGURED", retry_status: { type: "exhausted" } },
      ]);
    }
    expect(errors(unknown)[0]!.message).toContain('no program "unknown"');
    expect(errors(none)[0]!.message).toContain("loop_settings");
  });
});

describe("a harness", () => {
  it("offers the loops that it can run, and says what is wrong with its table of programs", async () => {
    await start();
    const directory = mkdtempSync(join(tmpdir(), "loop-table-"));
    const table = join(directory, "loops.json");
    const run = (more: Record<string, string>) =>
      startProgram("harness", { TENDON_URL: rig.server.url, TENDON_HARNESS_KEY: "test", ...more });
    try {
      writeFileSync(table, JSON.stringify({ look: PROGRAMS.look }));
      const all = run({ TENDON_EXTERNAL_LOOPS: table });
      await eventually(() => rig.server.hellos.length === 2, { withinMs: 60_000 });
      await all.end("SIGTERM");
      const some = run({ TENDON_CLAUDE_CODE_PROCESSES: "0" });
      await eventually(() => rig.server.hellos.length === 3, { withinMs: 60_000 });
      await some.end("SIGTERM");
      expect(rig.server.hellos.slice(1).map(({ loops }) => [...loops].sort())).toEqual([
        ["claude", "claude-code", "external", "scripted"],
        ["claude", "scripted"],
      ]);
      writeFileSync(table, '{"look": {"command": "look.sh"}}');
      const none = run({ TENDON_EXTERNAL_LOOPS: table });
      expect(await none.ended).toBe(1);
      expect(none.log()).toContain(`TENDON_EXTERNAL_LOOPS (${table})`);
      expect(none.log()).toContain("command must be a list of strings");
    } finally {
      rmSync(directory, { recursive: true, force: true });
    }
  });
});
