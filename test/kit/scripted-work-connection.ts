/** The stream of one harness at the scripted server. */
import { create } from "@bufbuild/protobuf";
import type { RpcContext } from "../../kit/rpc/context.ts";
import { type WorkResponse, WorkResponseSchema } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import type { Session } from "./scripted-session.ts";

type Message = WorkResponse["kind"];

export class WorkConnection {
  readonly context: RpcContext;
  readonly instanceId: string;
  readonly capacity: number;
  readonly held = new Set<Session>();
  leaving = false;
  private readonly queue: Message[] = [];
  private wake: (() => void) | undefined;
  private ended = false;

  constructor(context: RpcContext, instanceId: string, capacity: number) {
    this.context = context;
    this.instanceId = instanceId;
    this.capacity = capacity;
  }

  send(kind: Message): void {
    this.queue.push(kind);
    this.wake?.();
  }

  end(): void {
    this.ended = true;
    this.wake?.();
  }

  async *messages() {
    for (;;) {
      for (let kind = this.queue.shift(); kind; kind = this.queue.shift())
        yield create(WorkResponseSchema, { kind });
      if (this.ended) return;
      await new Promise<void>((resolve) => {
        this.wake = resolve;
      });
    }
  }
}
