import { create } from "@bufbuild/protobuf";
import { durationFromMs } from "@bufbuild/protobuf/wkt";
import { expect, test } from "vitest";
import { Outbox } from "../../kit/outbox.ts";
import {
  type ConnectResponse,
  ConnectResponseSchema,
  HandAgentGreetingSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { type AgentClient, Connection } from "./connection.ts";
import type { ConnectionOutcome } from "./outcome.ts";

const EVERY_MS = 5_000;
const TIMEOUT_MS = 15_000;

/** A connection that stands; what the server says is said here. */
async function standing() {
  const clock = new FakeClock();
  const said = new Outbox<ConnectResponse>(100);
  const client = {
    connect({ signal }: { signal: AbortSignal }) {
      signal.addEventListener("abort", () => said.end(signal.reason));
      return { responses: said, send: async () => {}, end() {}, cancel() {} };
    },
  } as unknown as AgentClient;
  const connection = new Connection({
    client,
    clock,
    greeting: () => create(HandAgentGreetingSchema),
    onStanding: () => {},
    onCommand: () => {},
  });
  let outcome: ConnectionOutcome | undefined;
  void connection.run().then((how) => {
    outcome = how;
  });
  const heartbeatEvery = durationFromMs(EVERY_MS);
  const heartbeatTimeout = durationFromMs(TIMEOUT_MS);
  const say = (kind: Parameters<typeof create<typeof ConnectResponseSchema>>[1]) =>
    said.push(create(ConnectResponseSchema, kind));
  say({ kind: { case: "welcome", value: { protocolVersion: 1, heartbeatEvery, heartbeatTimeout } } });
  await clock.advance(0);
  expect(connection.isStanding).toBe(true);
  const beat = () => say({ kind: { case: "heartbeat", value: { sequence: 1n } } });
  return { clock, beat, connection, outcome: () => outcome };
}

test("a server that says nothing is left before its heartbeat timeout is over (C1, H3)", async () => {
  const { clock, beat, connection, outcome } = await standing();
  beat();
  await clock.advance(TIMEOUT_MS / 2);
  expect(connection.isStanding).toBe(true);
  await clock.advance(TIMEOUT_MS / 2);
  expect(outcome()).toMatchObject({ kind: "broken", detail: expect.stringContaining("nothing was heard") });
});

test("an agent that was held up reads what waited before it judges its server (C1)", async () => {
  const { clock, beat, connection, outcome } = await standing();
  for (let round = 0; round < 5; round += 1) {
    beat();
    await clock.advance(EVERY_MS);
    clock.skip(4 * TIMEOUT_MS);
    // Its timers come first, and then what had come in meanwhile.
    await clock.advance(0);
    beat();
    await clock.advance(EVERY_MS);
  }
  expect([connection.isStanding, outcome()]).toEqual([true, undefined]);
});
