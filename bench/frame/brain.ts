/** The bench as a brain: it holds a lease and sends calls as a harness does. */
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { dial } from "../../kit/dial/dial.ts";
import { newId } from "../../kit/ids.ts";
import type { BidiCall, Client } from "../../kit/rpc/client.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import {
  type Assignment,
  HarnessService,
  type WorkRequestSchema,
  type WorkResponseSchema,
} from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { Platform } from "../../test/kit/platform.ts";
import type { BenchContext } from "./bench.ts";

export interface Brain {
  /** Appends so many tool uses, whose calls are then made one by one. */
  intend(calls: number): Promise<void>;
  call(): Promise<void>;
}

/** Takes a new session of the platform, whose hand comes from this environment. */
export async function startBrain(
  context: BenchContext,
  platform: Platform,
  environment: MessageInitShape<typeof EnvironmentSpecSchema>,
): Promise<Brain> {
  const key = (await readFile(join(platform.dataDir, "harness.key"), "utf8")).trim();
  const connection = dial({ url: platform.url, token: () => key, proxy: {} });
  context.defer(() => connection.close());
  const sessionId = await createSession(platform, environment);
  const { assignment, stop } = await takeSession(connection.client(HarnessService).work(), sessionId);
  context.defer(() => releaseHands(platform, sessionId));
  context.defer(stop);
  return new BenchBrain(
    connection.client(SessionService),
    connection.client(HandService),
    sessionId,
    assignment.lease as LeaseProof,
  );
}

/** An agent that stops keeps the files of its hands; those of a bench are of no use to anybody. */
async function releaseHands(platform: Platform, sessionId: string): Promise<void> {
  const client = platform.client(HandService);
  for (const { id } of (await client.listHands({ sessionId })).hands)
    await client.releaseHand({ handId: id });
}

async function createSession(
  platform: Platform,
  spec: MessageInitShape<typeof EnvironmentSpecSchema>,
): Promise<string> {
  const { agent } = await platform.client(AgentService).createAgent({
    spec: { name: `bench ${spec.name}`, tools: [{ kind: { case: "handToolset", value: {} } }] },
  });
  const { environment } = await platform.client(EnvironmentService).createEnvironment({ spec });
  const payload = JSON.stringify({ content: [{ type: "text", text: "go" }] });
  const { session } = await platform.client(SessionService).createSession({
    agentId: agent?.id ?? "",
    environmentId: environment?.id ?? "",
    initialEvents: [{ type: "user.message", payload }],
  });
  return session?.id ?? "";
}

/** Holds the session's lease until `stop`. */
async function takeSession(
  work: BidiCall<typeof WorkRequestSchema, typeof WorkResponseSchema>,
  sessionId: string,
): Promise<{ assignment: Assignment; stop: () => void }> {
  await work.send({
    kind: {
      case: "hello",
      value: { instanceId: newId("harness"), protocolVersion: 1, loops: ["claude"], capacity: 1 },
    },
  });
  const responses = work.responses[Symbol.asyncIterator]();
  for (;;) {
    const { value, done } = await responses.next();
    if (done) throw new Error("the server ended the stream");
    if (value.kind.case !== "assignment" || value.kind.value.session?.id !== sessionId) continue;
    const assignment = value.kind.value;
    const renew = setInterval(
      () =>
        void work
          .send({ kind: { case: "renew", value: { leaseIds: [assignment.lease?.leaseId ?? ""] } } })
          .catch(() => {}),
      5_000,
    );
    const drain = (async () => {
      while (!(await responses.next()).done);
    })().catch(() => {});
    const stop = () => {
      clearInterval(renew);
      work.cancel();
      void drain;
    };
    return { assignment, stop };
  }
}

type SessionClient = Client<typeof SessionService>;
type HandClient = Client<typeof HandService>;

const INPUT = JSON.stringify({ command: "true" });
const EVENTS_PER_APPEND = 200;

class BenchBrain implements Brain {
  private readonly sessions: SessionClient;
  private readonly hands: HandClient;
  private readonly sessionId: string;
  private readonly lease: LeaseProof;
  private readonly intended: string[] = [];

  constructor(sessions: SessionClient, hands: HandClient, sessionId: string, lease: LeaseProof) {
    this.sessions = sessions;
    this.hands = hands;
    this.sessionId = sessionId;
    this.lease = lease;
  }

  async intend(calls: number): Promise<void> {
    const payload = JSON.stringify({ name: "bash", input: JSON.parse(INPUT) });
    for (let left = calls; left > 0; left -= EVENTS_PER_APPEND) {
      const ids = Array.from({ length: Math.min(left, EVENTS_PER_APPEND) }, () => newId("event"));
      const events = ids.map((id) => ({ id, type: "agent.tool_use", payload }));
      await this.sessions.emitEvents({ sessionId: this.sessionId, events, lease: this.lease });
      this.intended.push(...ids);
    }
  }

  async call(): Promise<void> {
    const executionId = this.intended.pop();
    if (executionId === undefined) throw new Error("more calls than tool uses");
    const { sessionId, lease } = this;
    for await (const { kind } of this.hands.execute({
      sessionId,
      executionId,
      name: "bash",
      input: INPUT,
      lease,
    })) {
      if (kind.case !== "result") continue;
      if (kind.value.isError) throw new Error(`the call failed: ${kind.value.content}`);
      return;
    }
    throw new Error("the call ended without a result");
  }
}
