/** One real agent with process hands at a real hands area over a real database, and one hand of it at a time. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type { HandAgent } from "../../hand-agent/hand-agent.ts";
import type { ProvisionRequestSchema } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import type { HandTiming } from "../../server/hand/timing.ts";
import { collectExecution, textOfResult } from "./execution-stream.ts";
import { agentInProcess, makeAgentDir } from "./hand-agent-program.ts";
import { HandRig } from "./hand-rig.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";

export class AgentRig {
  readonly hands: HandRig;
  /** The agent's data directory. */
  readonly dir: string;
  handId = "";
  private readonly database: TestDatabase;
  private readonly agent: HandAgent;
  private readonly removeDir: () => Promise<void>;
  private requests = 0;

  private constructor(
    database: TestDatabase,
    hands: HandRig,
    agent: HandAgent,
    dir: Awaited<ReturnType<typeof makeAgentDir>>,
  ) {
    this.database = database;
    this.hands = hands;
    this.agent = agent;
    this.dir = dir.path;
    this.removeDir = dir.remove;
  }

  static async start(timing: Partial<HandTiming>): Promise<AgentRig> {
    const database = await createTestDatabase();
    const dir = await makeAgentDir();
    const hands = new HandRig({ pool: database.pool(), timing });
    await hands.start();
    const joinToken = await hands.joinToken();
    const agent = agentInProcess({ url: hands.url, dataDir: dir.path, joinToken, drainMs: 200 });
    const rig = new AgentRig(database, hands, agent, dir);
    await agent.start();
    return rig;
  }

  async stop(): Promise<void> {
    await this.agent.stop();
    await this.hands.stop();
    await this.removeDir();
    await this.database.drop();
  }

  /** From now on `handId`. */
  async provision(request: MessageInitShape<typeof ProvisionRequestSchema> = {}): Promise<string> {
    this.requests += 1;
    const asked = { requestId: `rig ${this.requests}`, ...request };
    this.handId = (await this.hands.client.provision(asked)).hand!.id;
    return this.handId;
  }

  async release(): Promise<void> {
    await this.hands.admin.releaseHand({ handId: this.handId });
  }

  /** What the command prints. */
  async bash(command: string): Promise<string> {
    this.requests += 1;
    const input = JSON.stringify({ command });
    const call = { handId: this.handId, executionId: `look ${this.requests}`, name: "bash", input };
    return textOfResult((await collectExecution(this.hands.client.execute(call))).result!).trim();
  }

  /** Everything in the work directory but for what hands keep there themselves. */
  listing(): Promise<string> {
    return this.bash("find . -mindepth 1 | sort");
  }
}

/** Reason and message of the failure, or "no error". */
export function reasonOf(promise: Promise<unknown>): Promise<string> {
  return promise.then(
    () => "no error",
    (error: { reason: string; message: string }) => `${error.reason}: ${error.message}`,
  );
}
