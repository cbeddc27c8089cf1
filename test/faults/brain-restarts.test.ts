/**
 * Whoever works dies or stands still: servers while many models stream (E2), harnesses with calls and answers under way (R3),
 * and all the while no session says that it runs without a brain for longer than a lease's time and 5 s (R8, E3).
 */
import { join } from "node:path";
import { describe, expect, type TestContext, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  gate,
  type MessagesRequest,
  startFakeMessagesApi,
  type Turn,
  text,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { callEnds, countedCommand, FaultPlatform } from "../kit/fault-platform.ts";
import { isWholeRun, trials } from "../kit/fault-trials.ts";
import { startProgram } from "../kit/program.ts";
import { promised } from "../kit/promised.ts";

const STREAMS = 50;
const LEASE_TTL_MS = 4_000;
/** E3: how long after its lease's end a session may still say that it runs. */
const TRUTH_GRACE_MS = 5_000;
const TIMEOUT_MS = isWholeRun ? 1_200_000 : 300_000;

interface Rig {
  readonly api: FakeMessagesApi;
  readonly faults: FaultPlatform;
}

const harnessEnv = (api: FakeMessagesApi) => ({
  ANTHROPIC_API_KEY: api.apiKey,
  ANTHROPIC_BASE_URL: api.url,
  TENDON_MODEL: "claude-test",
  TENDON_MODEL_TIMEOUT_MS: "600000",
  TENDON_MODEL_RETRY_TOTAL_MS: "600000",
});

/** Ends with the test. */
async function start(
  { onTestFinished }: TestContext,
  script: (request: MessagesRequest) => Turn,
  leaseTtlMs: number,
): Promise<Rig> {
  const api = await startFakeMessagesApi({ script });
  onTestFinished(async () => {
    await api.stop();
    expect(api.refusals).toEqual([]);
  });
  const faults = await FaultPlatform.start({
    server: { TENDON_LEASE_TTL_MS: String(leaseTtlMs) },
    harness: harnessEnv(api),
  });
  onTestFinished(() => faults.stop());
  return { api, faults };
}

const firstWords = ({ messages }: MessagesRequest) => String(messages[0]!.content[0]!.text);
const types = (events: readonly Event[]) => events.map(({ type }) => type);

/** Much of their time they wait; each has a platform of its own. The whole run takes bounds at their word: one by one. */
const AT_ONCE = { concurrent: !isWholeRun };

describe("a server that restarts", AT_ONCE, () => {
  test(
    `while ${STREAMS} models stream, in good order and by kill -9, changes no epoch and has no request repeated (E2)`,
    async (context) => {
      const held = gate();
      const script = () =>
        turn([text("first ", "second")], { before: { delta: (n) => (n === 1 ? held.opened : undefined) } });
      // A busy machine may need longer than a lease's 30 s to start a server.
      const { api, faults } = await start(context, script, 120_000);
      const { platform, database } = faults;
      const sessionIds = await Promise.all(
        Array.from({ length: STREAMS }, (_, n) => faults.newSession(`stream ${n}`)),
      );
      await api.received(STREAMS, 60_000);
      for (const signal of ["SIGTERM", "SIGKILL"] as const) {
        await platform.program("server").end(signal);
        await platform.start("server");
        await eventually(
          async () => {
            const { harnesses } = await platform.client(AdminService).getStatus({}, { deadlineMs: 5_000 });
            return harnesses.length === 1 && harnesses[0]!.sessions === STREAMS;
          },
          { withinMs: 60_000, everyMs: 200 },
        );
      }
      held.open();
      for (const sessionId of sessionIds) {
        const events = await faults.rested(sessionId, 60_000);
        expect(types(events).filter((type) => type === "span.model_request_start")).toHaveLength(1);
        expect(events.find(({ type }) => type === "agent.message")!.payload).toContain("first second");
      }
      expect(api.requests).toHaveLength(STREAMS);
      const { rows } = await database
        .pool()
        .query<{ epoch: number; sessions: number }>(
          "select lease_epoch as epoch, count(*)::integer as sessions from sessions group by lease_epoch",
        );
      expect(rows.map(({ epoch, sessions }) => [Number(epoch), sessions])).toEqual([[1, STREAMS]]);
    },
    TIMEOUT_MS,
  );
});

/** Looks at the database all the time: the sessions that say `running` without a live lease for longer than they may. */
function watchTruth({ database }: FaultPlatform) {
  const lies: string[] = [];
  let looks = 0;
  let stopped = false;
  const looking = (async () => {
    while (!stopped) {
      const { rows } = await database.pool().query<{ session_id: string }>(
        `select session_id from sessions where status = 'running' and archived_at is null
           and coalesce(lease_expires_at, updated_at) < clock_timestamp() - $1::integer * interval '1 millisecond'`,
        [promised(TRUTH_GRACE_MS)],
      );
      lies.push(...rows.map((row) => row.session_id));
      looks += 1;
      await systemClock.sleep(100);
    }
  })();
  return {
    async stop() {
      stopped = true;
      await looking;
      expect(looks).toBeGreaterThan(10);
      return lies;
    },
  };
}

function secondHarness({ onTestFinished }: TestContext, { api, faults: { platform } }: Rig): void {
  const program = startProgram("harness", {
    ...harnessEnv(api),
    TENDON_URL: platform.url,
    TENDON_HARNESS_KEY_FILE: join(platform.dataDir, "harness.key"),
  });
  onTestFinished(async () => {
    await program.end("SIGKILL");
  });
}

describe("a harness that holds answers and calls", AT_ONCE, () => {
  test.for(["SIGTERM", "SIGKILL", "SIGSTOP"] as const)(
    "and gets %s is replaced within a lease's time; status tells the truth, every call runs once (R3, R8)",
    { timeout: TIMEOUT_MS },
    async (signal, context) => {
      const held = gate();
      const commands = new Map<string, string>();
      const script = (request: MessagesRequest): Turn => {
        if (request.messages.some(({ role }) => role === "assistant")) return turn(["Done."]);
        const words = firstWords(request);
        if (words.startsWith("stream"))
          return turn([text("first ", "second")], {
            before: { delta: (n) => (n === 1 ? held.opened : undefined) },
          });
        return turn([toolUse("bash", { command: commands.get(words)! })]);
      };
      // What a server frees when the stream breaks is told from what its time frees.
      const rig = await start(context, script, signal === "SIGKILL" ? 120_000 : LEASE_TTL_MS);
      const { api, faults: own } = rig;
      const count = trials(2, 20);
      const truth = watchTruth(own);
      const streams = await Promise.all(
        Array.from({ length: count }, (_, n) => own.newSession(`stream ${n}`)),
      );
      const calls = await Promise.all(
        Array.from({ length: count }, (_, n) => {
          // More than a lease's time, so that the next holder finds it running.
          commands.set(`call ${n}`, countedCommand(`tag-${n}`, 12).replace("run: ", ""));
          return own.newSession(`call ${n}`);
        }),
      );
      await api.received(2 * count, 60_000);
      await eventually(
        async () => {
          const ran = await Promise.all(calls.map((_, n) => own.runsOf(`tag-${n}`)));
          return ran.every((runs) => runs === 1);
        },
        { withinMs: 60_000 },
      );
      const first = own.platform.program("harness");
      secondHarness(context, rig);
      await eventually(
        async () =>
          (await own.platform.client(AdminService).getStatus({}, { deadlineMs: 5_000 })).harnesses.length ===
          2,
        { withinMs: 60_000 },
      );
      const stoppedAt = performance.now();
      if (signal === "SIGSTOP") process.kill(first.pid, "SIGSTOP");
      // In good order it waits a while for answers that are under way, and then leaves them and the calls to others.
      else expect(await first.end(signal)).toBe(signal === "SIGTERM" ? 0 : "SIGKILL");
      // The other one asks again for each stream that was under way.
      await api.received(3 * count, 60_000);
      const tookMs = performance.now() - stoppedAt;
      expect(tookMs).toBeLessThan(
        promised(signal === "SIGKILL" ? LEASE_TTL_MS : LEASE_TTL_MS + TRUTH_GRACE_MS),
      );
      held.open();
      const logs = new Map<string, Event[]>();
      for (const sessionId of [...streams, ...calls])
        logs.set(sessionId, await own.rested(sessionId, 60_000));
      // Awake again, the first one changes nothing any more (E1).
      if (signal === "SIGSTOP") process.kill(first.pid, "SIGCONT");
      const later = await own.newSession("stream later");
      await own.rested(later, 60_000);
      for (const [sessionId, events] of logs) {
        expect(await own.events(sessionId)).toEqual(events);
        expect(types(events).filter((type) => type === "session.status_idle")).toHaveLength(1);
        for (const { outcome, text: output } of callEnds(events)) {
          expect(outcome).toBe("completed");
          expect(output).toContain("ended");
        }
      }
      for (const [n] of calls.entries()) expect(await own.runsOf(`tag-${n}`)).toBe(1);
      expect(await truth.stop()).toEqual([]);
    },
  );
});
