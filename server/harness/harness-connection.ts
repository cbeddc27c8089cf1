/** One Work stream: a harness that is connected to this replica, and the sessions that it holds. */
import { create } from "@bufbuild/protobuf";
import { Outbox } from "../../kit/outbox.ts";
import {
  type HarnessHello,
  HeartbeatSchema,
  LeaseLostSchema,
  type WorkResponse,
  WorkResponseSchema,
} from "../../proto/gen/tendon/v1/harness_service_pb.js";
import type { HeldSession, WorkMessage } from "./held-session.ts";
import { OUTBOX_MESSAGES } from "./limits.ts";
import type { HarnessLoad } from "./rules.ts";

export class HarnessConnection implements HarnessLoad {
  readonly instanceId: string;
  readonly hello: HarnessHello;
  readonly loops: ReadonlySet<string>;
  readonly capacity: number;
  readonly outbox = new Outbox<WorkResponse>(OUTBOX_MESSAGES);
  /** By lease id. */
  readonly held = new Map<string, HeldSession>();
  /** Assignments that are being prepared count as taken. */
  pending = 0;
  alone = false;
  keptFree = false;
  leaving = false;
  lastHeardMs: number;
  /** Workspaces that its key opens; undefined means all. */
  readonly workspaceId: string | undefined;
  private received = 0n;
  private sent = 0n;

  constructor(hello: HarnessHello, workspaceId: string | undefined, nowMs: number) {
    this.hello = hello;
    this.workspaceId = workspaceId;
    this.instanceId = hello.instanceId;
    this.loops = new Set(hello.loops);
    this.capacity = hello.capacity;
    this.lastHeardMs = nowMs;
  }

  get sessions(): number {
    return this.held.size + this.pending;
  }

  send(message: WorkMessage): boolean {
    return this.outbox.push(create(WorkResponseSchema, { kind: message }));
  }

  heard(sequence: bigint): void {
    if (sequence > this.received) this.received = sequence;
  }

  beat(): void {
    this.sent += 1n;
    this.send({
      case: "heartbeat",
      value: create(HeartbeatSchema, { sequence: this.sent, receivedSequence: this.received }),
    });
  }

  lose(leaseId: string, detail: string): HeldSession | undefined {
    const session = this.held.get(leaseId);
    if (session === undefined) return undefined;
    this.drop(session);
    this.send({ case: "leaseLost", value: create(LeaseLostSchema, { leaseId, detail }) });
    return session;
  }

  drop(session: HeldSession): void {
    session.close();
    this.held.delete(session.leaseId);
    if (this.sessions === 0) this.alone = false;
  }
}
