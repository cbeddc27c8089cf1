/** The harness as one part: takes sessions from the server and runs each until only a client can go on. */
import type { Clock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import { newId } from "../kit/ids.ts";
import type { Service } from "../kit/lifecycle.ts";
import type { Logger } from "../kit/log.ts";
import { NO_TRACING, type Tracing } from "../kit/trace.ts";
import { type Assignment, ReleaseReason } from "../proto/gen/tendon/v1/harness_service_pb.js";
import { defaultHistoryBytes, HistoryRoom } from "./history-room.ts";
import type { Lease } from "./lease.ts";
import type { Loop } from "./loops/loop.ts";
import { DEFAULT_LOOP } from "./loops/registry.ts";
import { createSendToProxy } from "./mcp-client/proxy-request.ts";
import type { CallJudge } from "./permission/call-judge.ts";
import { Runner, type RunnerSettings } from "./runner.ts";
import type { ServerClients } from "./server-clients.ts";
import type { TextModel } from "./text-model.ts";
import { type Release, WorkStream } from "./work-stream.ts";

export interface HarnessOptions {
  readonly server: ServerClients;
  readonly loops: ReadonlyMap<string, Loop>;
  /** For what is asked beside the talk, whatever the loop. Not set: outcomes cannot be judged here, and sessions are told so. */
  readonly textModel?: TextModel;
  /** Sessions at a time. */
  readonly capacity: number;
  /** The memory that histories may take; by default a part of this process's heap. */
  readonly room?: HistoryRoom;
  /** Where model requests go, for people: never a key. */
  readonly modelSource: "api" | "gateway" | "demo";
  readonly build: string;
  readonly settings: RunnerSettings;
  /** Judges calls whose policy is `auto`; not set: they are held for clients. */
  readonly judge?: CallJudge;
  /** Time for running requests to end when the harness stops. */
  readonly drainMs: number;
  readonly clock: Clock;
  readonly log: Logger;
  /** Not set: contexts are passed on, and no spans are made. */
  readonly tracing?: Tracing;
  /** Authorities to trust at proxies besides the usual ones. */
  readonly proxyCaFile?: string | undefined;
}

/** Another harness may be able to run it. */
const UNRUNNABLE_RETRY_MS = 60_000;

export class Harness implements Service {
  readonly name = "harness";
  readonly instanceId = newId("harness");
  private readonly options: HarnessOptions;
  private readonly work: WorkStream;
  /** Running sessions, by lease id. */
  private readonly runners = new Map<string, { readonly runner: Runner; readonly done: Promise<void> }>();
  private readonly draining = new AbortController();
  private readonly room: HistoryRoom;
  private readonly toProxies: ReturnType<typeof createSendToProxy>;
  private stopped: Promise<void> | undefined;

  constructor(options: HarnessOptions) {
    this.options = options;
    this.toProxies = createSendToProxy(options.proxyCaFile);
    const { server, loops, capacity, modelSource, build, clock, log } = options;
    this.room = options.room ?? new HistoryRoom(defaultHistoryBytes(), clock);
    this.work = new WorkStream({
      client: server.harness,
      instanceId: this.instanceId,
      build,
      loops: [...loops.keys()],
      capacity,
      modelSource,
      clock,
      log,
      assigned: (assignment, lease) => this.assigned(assignment, lease),
      advanced: (lease, { head, events }) => this.runners.get(lease.id)?.runner.advanced(head, events),
    });
  }

  get isConnected(): boolean {
    return this.work.isConnected;
  }

  /** Sessions that run now. */
  get sessions(): number {
    return this.runners.size;
  }

  /** Returns at once; the connection is made, and made again, in the background. */
  async start(): Promise<void> {
    if (this.stopped === undefined) this.work.start();
  }

  /** Takes nothing new, lets running requests end for `drainMs`, gives the rest to other harnesses, and hangs up. */
  stop(): Promise<void> {
    this.stopped ??= this.drain();
    return this.stopped;
  }

  private async drain(): Promise<void> {
    const { clock, drainMs } = this.options;
    this.work.sayGoodbye();
    const cancel = clock.after(drainMs, () => this.draining.abort(new Error("the harness stops")));
    for (const { runner } of this.runners.values()) runner.stopSoon();
    await Promise.all([...this.runners.values()].map(({ done }) => done));
    cancel();
    this.draining.abort(new Error("the harness stops"));
    await this.work.stop();
    this.toProxies.close();
  }

  private assigned(assignment: Assignment, lease: Lease): void {
    const { server, loops, textModel, settings, judge, clock, tracing = NO_TRACING } = this.options;
    const log = this.options.log.child({ sessionId: lease.sessionId });
    if (this.stopped !== undefined) {
      this.work.release(lease, { reason: ReleaseReason.DRAINING });
      return;
    }
    const name = assignment.session?.agent?.spec?.loop || DEFAULT_LOOP;
    const loop = loops.get(name);
    if (loop === undefined || assignment.session?.agent === undefined) {
      log.error({ loop: name }, "an assignment that this harness cannot run was given back");
      const retryAfterMs = UNRUNNABLE_RETRY_MS;
      this.work.release(lease, { reason: ReleaseReason.RETRY_LATER, retryAfterMs });
      return;
    }
    const draining = this.draining.signal;
    const work = this.work;
    const runner = new Runner({
      assignment,
      lease,
      loop,
      textModel,
      server,
      work,
      settings,
      judge,
      clock,
      log,
      tracing,
      sendToProxy: this.toProxies.send,
      draining,
      room: this.room,
    });
    const done = runner.run().then(
      (release) => this.finished(lease, release),
      (error) => log.error({ problem: messageOf(error) }, "a runner failed in a way that it should not"),
    );
    this.runners.set(lease.id, { runner, done });
  }

  private finished(lease: Lease, release: Release | undefined): void {
    this.runners.delete(lease.id);
    if (release?.lacksRoom) {
      const { takenBytes, maxBytes } = this.room;
      const { sessionId } = lease;
      this.options.log.info(
        { sessionId, takenBytes, maxBytes },
        "a session makes room for others' histories",
      );
    }
    if (release === undefined) this.work.forget(lease);
    else this.work.release(lease, release);
  }
}
