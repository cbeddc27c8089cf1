/** A harness that does only what a test tells it: the far side of HarnessService. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { durationFromMs, durationMs } from "@bufbuild/protobuf/wkt";
import { newId } from "../../kit/ids.ts";
import type { Client } from "../../kit/rpc/client.ts";
import {
  type Assignment,
  type HarnessHelloSchema,
  type HarnessService,
  type HarnessWelcome,
  ReleaseReason,
  type WorkRequestSchema,
  type WorkResponse,
} from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { eventually } from "./eventually.ts";

type Kind = NonNullable<MessageInitShape<typeof WorkRequestSchema>["kind"]>;

type SaidKind = NonNullable<WorkResponse["kind"]["case"]>;
type SaidValue<C extends SaidKind> = Extract<WorkResponse["kind"], { case: C }>["value"];

export class ScriptedHarness {
  readonly instanceId: string;
  /** Everything that the server said, in order. */
  readonly heard: WorkResponse["kind"][] = [];
  /** Set once the stream has ended: what ended it, undefined when it ended well. */
  ended: { error: unknown } | undefined;
  /** Whether one that lives renews its leases. */
  renews = true;
  private readonly timers: NodeJS.Timeout[] = [];
  private readonly call: ReturnType<Client<typeof HarnessService>["work"]>;

  constructor(
    client: Client<typeof HarnessService>,
    hello: MessageInitShape<typeof HarnessHelloSchema> = {},
  ) {
    this.instanceId = hello.instanceId ?? newId("harness");
    this.call = client.work();
    const full = {
      protocolVersion: 1,
      build: "test",
      loops: ["claude"],
      capacity: 10,
      ...hello,
      instanceId: this.instanceId,
    };
    this.say({ case: "hello", value: full });
    void this.listen();
  }

  async welcome(): Promise<HarnessWelcome> {
    return eventually(() => this.all("welcome")[0]);
  }

  /** From its welcome on it beats and renews its leases as harnesses do, so that it is not cut off where a test takes its time. */
  async live(): Promise<void> {
    const { heartbeatEvery, renewEvery } = await this.welcome();
    const beat = () => this.say({ case: "heartbeat", value: {} });
    const renew = () => {
      const leaseIds = this.assignments.map(({ lease }) => lease?.leaseId ?? "");
      if (this.renews && leaseIds.length > 0) this.say({ case: "renew", value: { leaseIds } });
    };
    if (this.ended !== undefined) return;
    this.timers.push(setInterval(beat, durationMs(heartbeatEvery!)));
    this.timers.push(setInterval(renew, durationMs(renewEvery!)));
  }

  /** What was said of one kind. */
  all<C extends SaidKind>(kind: C): SaidValue<C>[] {
    return this.heard.filter((one) => one.case === kind).map((one) => one.value as SaidValue<C>);
  }

  get assignments(): Assignment[] {
    return this.all("assignment");
  }

  async assigned(sessionId: string, { withinMs = 60_000, times = 1 } = {}): Promise<Assignment> {
    return eventually(() => this.assignments.filter((one) => one.session?.id === sessionId)[times - 1], {
      withinMs,
    });
  }

  release(
    assignment: Assignment,
    reason = ReleaseReason.IDLE,
    more: { retryAfterMs?: number; lacksRoom?: boolean } = {},
  ): void {
    const position = assignment.tail.at(-1)?.position ?? 0n;
    const retryAfter = durationFromMs(more.retryAfterMs ?? 0);
    const { lacksRoom = false } = more;
    this.say({
      case: "release",
      value: { leaseId: assignment.lease?.leaseId ?? "", reason, position, retryAfter, lacksRoom },
    });
  }

  say(kind: Kind): void {
    this.call.send({ kind }).catch(() => {});
  }

  /** Ends the stream without a word, as a harness that dies does. */
  die(): void {
    this.call.cancel();
  }

  async leave(): Promise<void> {
    this.say({ case: "goodbye", value: {} });
    this.call.end();
    await eventually(() => this.ended);
  }

  private async listen(): Promise<void> {
    try {
      for await (const { kind } of this.call.responses) this.heard.push(kind);
      this.ended = { error: undefined };
    } catch (error) {
      this.ended = { error };
    } finally {
      for (const timer of this.timers) clearInterval(timer);
    }
  }
}
