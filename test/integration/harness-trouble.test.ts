import { afterEach, describe, expect, it } from "vitest";
import type { Loop } from "../../harness/loops/loop.ts";
import { eventually } from "../kit/eventually.ts";
import {
  drop,
  gate,
  hang,
  invalidRequest,
  overloaded,
  rateLimited,
  serverError,
  text,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { freePort } from "../kit/free-port.ts";
import { type Rig, type RigOptions, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import { promised } from "../kit/promised.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

/** The first attempt has time enough for its answer on a busy machine; the last one may have none. */
const FEW_ATTEMPTS = { firstMs: 700, maxMs: 700, totalMs: 2_000 };

let rig: Rig;
afterEach(() => rig.stop());

const bash: ScriptedTool = ({ command }) => ({ text: `ran ${command}` });
const start = async (options: RigOptions = {}) => {
  rig = await startRig({ server: { tools: { bash } }, ...options });
};
const errors = (session: ScriptedSession) =>
  session.payloads("session.error").map(({ error }) => {
    const { type, retry_status } = error as { type: string; retry_status: { type: string } };
    return `${type} ${retry_status.type}`;
  });

describe("a model in trouble", () => {
  it("is asked again after each kind of passing failure, and the log shows every attempt", async () => {
    await start({
      model: { script: [overloaded(), rateLimited(), serverError(), drop, turn(["at last"])] },
    });
    const session = rig.talk("hi");
    await rested(session);
    expect(errors(session)).toEqual([
      "model_overloaded_error retrying",
      "model_rate_limited_error retrying",
      "model_request_failed_error retrying",
      "model_request_failed_error retrying",
    ]);
    expect(session.types().filter((type) => type === "session.status_rescheduled")).toHaveLength(4);
    expect(session.payloads("span.model_request_end").map(({ is_error }) => is_error)).toEqual([
      true,
      true,
      true,
      true,
      false,
    ]);
    expect(spoken(session)).toEqual(["at last"]);
    // Each attempt asks the same.
    expect(new Set(rig.api.requests.map(({ body }) => body.toString())).size).toBe(1);
  });

  it("that stays overloaded is given up within the bound; the next message starts afresh", async () => {
    await start({
      // However many attempts fit into the time: only what holds the second message is answered.
      model: {
        script: (request) => (JSON.stringify(request).includes("there?") ? turn(["back"]) : overloaded()),
      },
      settings: { retry: FEW_ATTEMPTS },
    });
    const began = performance.now();
    const session = rig.talk("hi");
    await rested(session);
    expect(performance.now() - began).toBeLessThan(promised(FEW_ATTEMPTS.totalMs + 1_500));
    expect(errors(session)[0]).toBe("model_overloaded_error retrying");
    expect(errors(session).at(-1)).toMatch(/ exhausted$/);
    expect(errors(session).filter((error) => error.endsWith("exhausted"))).toHaveLength(1);
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    const asked = rig.api.requests.length;
    session.say("are you there?");
    await rested(session, 2);
    expect(rig.api.requests.length).toBeGreaterThan(asked);
    expect(spoken(session)).toEqual(["back"]);
  });

  it("keeps messages that waited when it is given up, for the next one to take along", async () => {
    const said = gate();
    await start({
      model: {
        script: async (request) => {
          if (JSON.stringify(request).includes("three")) return turn(["back"]);
          // From the second attempt on: the next message is there before the last one fails.
          if (rig.api.requests.length > 1) await said.opened;
          return invalidRequest("messages: no");
        },
      },
    });
    const session = rig.talk("one");
    await rig.api.received(2);
    session.say("two");
    said.open();
    await rested(session);
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    session.say("three");
    await rested(session, 2);
    expect(rig.api.requests.at(-1)!.body.toString()).toMatch(/one.*two.*three/);
  });

  it("can be interrupted while it waits for the next attempt", async () => {
    await start({
      model: {
        script: (request) => (JSON.stringify(request).includes("two") ? turn(["ok"]) : rateLimited(60)),
      },
      settings: { retry: { firstMs: 1, maxMs: 5, totalMs: 300_000 } },
    });
    const session = rig.talk("one");
    await eventually(() => session.types().includes("session.status_rescheduled"));
    session.send({ type: "user.interrupt", payload: {} });
    await rested(session);
    expect(session.payloads("session.status_idle")[0]).toMatchObject({
      stop_reason: { type: "end_turn" },
      interrupted: {},
    });
    session.say("two");
    await rested(session, 2);
    expect(spoken(session)).toEqual(["ok"]);
    expect(rig.api.requests).toHaveLength(2);
  });

  it("waits as long as a rate limit asks", async () => {
    await start({
      model: { script: [rateLimited(1), turn(["ok"])] },
      settings: { retry: { firstMs: 1, maxMs: 5, totalMs: 60_000 } },
    });
    const session = rig.talk("hi");
    await rested(session);
    const [first, second] = rig.api.requests;
    expect(second!.receivedAtMs - first!.receivedAtMs).toBeGreaterThan(950);
  });

  it("that says nothing is given up within the bound, also when each attempt hangs", async () => {
    await start({
      model: { script: () => hang },
      settings: { modelTimeoutMs: 60_000, retry: { firstMs: 50, maxMs: 100, totalMs: 800 } },
    });
    const began = performance.now();
    const session = rig.talk("hi");
    await rested(session);
    expect(performance.now() - began).toBeLessThan(promised(800 + 1_500));
    expect(errors(session).at(-1)).toBe("model_request_failed_error exhausted");
  });

  it("that cannot be reached is given up with the reason", async () => {
    const port = await freePort();
    await start({
      modelUrl: `http://127.0.0.1:${port}`,
      settings: { retry: FEW_ATTEMPTS },
    });
    const session = rig.talk("hi");
    await rested(session);
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    expect(JSON.stringify(session.payloads("session.error")[0])).toContain("ECONNREFUSED");
  });

  it("that calls a request invalid is asked three times in all", async () => {
    await start({ model: { script: () => invalidRequest("messages: no") } });
    const session = rig.talk("hi");
    await rested(session);
    expect(rig.api.requests).toHaveLength(3);
    expect(errors(session).at(-1)).toBe("model_request_failed_error exhausted");
  });

  it("that refuses the credential is not asked for long, and the log holds no secret (S2)", async () => {
    const message = "invalid key test-key, go away";
    const denied = { kind: "http_failure", status: 401, errorType: "authentication_error", message } as const;
    await start({ model: { apiKey: "test-key", script: () => denied } });
    const refused = rig.talk("hi");
    await rested(refused);
    expect(rig.api.requests).toHaveLength(2);
    expect(errors(refused)).toEqual([
      "model_request_failed_error retrying",
      "model_request_failed_error exhausted",
    ]);
    expect(refused.events.map(({ payload }) => payload).join()).not.toContain("test-key");
  });

  it("whose stream is cut leaves only the span pair, at whichever byte (R6)", async () => {
    const whole = [text("Let me look."), toolUse("bash", { command: "a" })];
    await start({ model: { script: [turn(whole), turn(["ok"])] } });
    const uncut = rig.talk("hi");
    await rested(uncut);
    const length = await eventually(() => rig.api.requests[0]!.responseBytes);
    await rig.stop();
    const cuts = [
      0,
      1,
      150,
      ...Array.from({ length: 9 }, (_, i) => Math.floor(((i + 1) * length) / 10)),
      length - 2,
    ];
    for (const how of ["destroy", "end"] as const) {
      let at = 0;
      await start({
        model: {
          script: (request) => {
            const isFirst = request.messages.length === 1;
            if (!isFirst) return turn(["ok"]);
            at += 1;
            return at % 2 === 1
              ? turn(whole, { breakOff: { atByte: cuts[(at - 1) / 2]!, how } })
              : turn(whole);
          },
        },
      });
      for (const cut of cuts) {
        const session = rig.talk("hi");
        await rested(session);
        const { events } = session;
        const failedEnd = events.findIndex(({ type }) => type === "span.model_request_end");
        expect(
          events.slice(0, failedEnd).some(({ type }) => type.startsWith("agent.")),
          `cut at ${cut}`,
        ).toBe(false);
        expect(session.payloads("span.model_request_end").map(({ is_error }) => is_error)).toEqual([
          true,
          false,
          false,
        ]);
        expect(session.payloads("agent.tool_use")).toHaveLength(1);
      }
      expect([...rig.server.runs.values()].every((runs) => runs === 1)).toBe(true);
      expect(rig.api.refusals).toEqual([]);
      if (how === "destroy") await rig.stop();
    }
  });

  it("that fails in the middle of its stream is asked again", async () => {
    const failing = turn([text("a", "b", "c")], {
      breakOff: { afterDeltas: 2, errorType: "overloaded_error", message: "Overloaded" },
    });
    await start({ model: { script: [failing, turn(["whole"])] } });
    const session = rig.talk("hi");
    await rested(session);
    expect(errors(session)).toEqual(["model_overloaded_error retrying"]);
    expect(spoken(session)).toEqual(["whole"]);
  });
});

describe("a bug in a loop", () => {
  const buggy: Loop = {
    name: "buggy",
    model: () => "none",
    run: async () => {
      throw new Error("secret detail");
    },
  };

  it("ends its own turn with an internal error, tells no detail, and disturbs no other session", async () => {
    await start({ loops: [buggy] });
    const bad = rig.talk("hi", { loop: "buggy" });
    const good = rig.talk("run: echo hi");
    await rested(bad);
    await rested(good);
    expect(errors(bad)).toEqual(["unknown_error exhausted"]);
    expect(bad.payloads("session.error")[0]).toMatchObject({ error: { message: "internal error" } });
    expect(bad.events.map(({ payload, internal }) => payload + internal).join()).not.toContain(
      "secret detail",
    );
    expect(bad.payloads("span.model_request_end")).toMatchObject([{ is_error: true }]);
    expect(stopReasons(good)).toEqual(["end_turn"]);
    expect(rig.harness.sessions).toBe(0);
  });
});
