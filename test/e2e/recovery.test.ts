/** Everything is killed at once, the next start goes on: sessions, their commands, their log. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { describe, expect, type TestContext, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import { promised } from "../kit/promised.ts";
import { atOwnPort, Installation, kill } from "../kit/start-process.ts";

/** After a kill -9 of everything, sessions go on within this time. */
const GO_ON_WITHIN_MS = 90_000;

/** Where no server is left to see who died, leases run out; not after 30 s, as they would. */
const SHORT_LEASES = { env: { TENDON_LEASE_TTL_MS: "5000" } };

interface Events {
  events: { id: string; position: string; type: string; payload: string }[];
}

// Leases and commands take their time in each.
describe("kill -9", { concurrent: !isWholeRun }, () => {
  function newInstallation({ onTestFinished }: TestContext): Installation {
    const installation = new Installation();
    onTestFinished(() => installation.dispose());
    return installation;
  }

  async function sessionThatRuns(installation: Installation, counter: string): Promise<string> {
    const command = `run: echo x >> ${counter}; sleep 3; wc -l < ${counter}`;
    const { id } = await installation.json<{ id: string }>("session", "create", "--message", command);
    await eventually(async () => {
      const { events } = await installation.json<Events>(
        "session",
        "events",
        id,
        "--types",
        "hand.provisioned,agent.tool_use",
      );
      return events.length > 1;
    });
    return id;
  }

  async function endOf(installation: Installation, id: string): Promise<Events["events"]> {
    const { code, stdout } = await installation.tendon(["session", "watch", id, "--until-idle"], {
      withinMs: GO_ON_WITHIN_MS,
    });
    expect({ code, stdout }).toMatchObject({ code: 0 });
    return (await installation.json<Events>("session", "events", id, "--limit", "1000")).events;
  }

  /** Every call has one result (X3), positions are dense (L1). */
  function expectWhole(events: Events["events"]): void {
    expect(events.map(({ position }) => Number(position))).toEqual(events.map((_, index) => index + 1));
    const calls = events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
    const answered = events
      .filter(({ type }) => type === "agent.tool_result")
      .map(({ payload }) => JSON.parse(payload).tool_use_id);
    expect(answered.toSorted()).toEqual(calls.toSorted());
  }

  test("of the process group: the next start goes on with what ran (X1, X3)", async (context) => {
    const installation = newInstallation(context);
    const first = installation.start(await atOwnPort(), SHORT_LEASES);
    await first.ready();
    const id = await sessionThatRuns(installation, "runs.txt");
    first.signalGroup("SIGKILL");
    await first.ended();
    const beforeMs = performance.now();
    await installation.start(await atOwnPort(), SHORT_LEASES).ready();
    const events = await endOf(installation, id);
    expect(performance.now() - beforeMs).toBeLessThan(promised(GO_ON_WITHIN_MS));
    expectWhole(events);
  }, 180_000);

  test("of every process at once: nothing is run twice, and the session takes the next message (X1)", async (context) => {
    const installation = newInstallation(context);
    const first = installation.start(await atOwnPort(), SHORT_LEASES);
    await first.ready();
    const id = await sessionThatRuns(installation, "runs.txt");
    const record = JSON.parse(readFileSync(join(installation.dataDir, "start.json"), "utf8"));
    for (const { pid } of [record, ...record.children]) kill(pid, "SIGKILL");
    await first.ended();
    await installation.start(await atOwnPort(), SHORT_LEASES).ready();
    expectWhole(await endOf(installation, id));
    const next = await installation.tendon(["session", "send", id, "run: echo alive-$((5+5))", "--follow"], {
      withinMs: GO_ON_WITHIN_MS,
    });
    expect(next.stdout).toContain("alive-10");
    const uses = (await installation.json<Events>("session", "events", id, "--limit", "1000")).events;
    expectWhole(uses);
    expect(uses.filter(({ type }) => type === "agent.tool_use")).toHaveLength(2);
  }, 180_000);
});
