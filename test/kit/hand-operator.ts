/** Calls on hands outside sessions, over the wire, as a client makes them. */
import { randomUUID } from "node:crypto";
import type { Client } from "../../kit/rpc/client.ts";
import type { Hand } from "../../proto/gen/tendon/v1/hand_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { collectExecution, type Ran } from "./execution-stream.ts";
import type { Platform } from "./platform.ts";

export interface OperatedCall {
  readonly executionId: string;
  /** Rejects when the stream breaks off. */
  readonly ran: Promise<Ran>;
}

export class HandOperator {
  readonly hands: Client<typeof HandService>;

  constructor(platform: Pick<Platform, "client">) {
    this.hands = platform.client(HandService);
  }

  async provision(requestId: string = randomUUID(), environmentId = ""): Promise<Hand> {
    const { hand } = await this.hands.provision({ requestId, environmentId });
    if (hand === undefined) throw new Error("there is no hand");
    return hand;
  }

  begin(
    handId: string,
    command: string,
    { timeoutMs = 0, executionId = randomUUID() as string } = {},
  ): OperatedCall {
    const request = {
      executionId,
      handId,
      name: "bash",
      input: JSON.stringify({ command, ...(timeoutMs === 0 ? {} : { timeout_ms: timeoutMs }) }),
    };
    const ran = collectExecution(this.hands.execute(request));
    ran.catch(() => {}); // whoever waits for it is told
    return { executionId, ran };
  }

  run(handId: string, command: string, options: { timeoutMs?: number } = {}): Promise<Ran> {
    return this.begin(handId, command, options).ran;
  }

  async cancel(executionId: string): Promise<void> {
    await this.hands.cancelExecution({ executionId });
  }

  async release(handId: string): Promise<Hand> {
    const { hand } = await this.hands.releaseHand({ handId });
    if (hand === undefined) throw new Error("there is no hand");
    return hand;
  }
}
