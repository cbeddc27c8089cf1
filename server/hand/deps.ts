/** What the parts of this area are made from. */
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import type { MemorySync } from "../ports/memory.ts";
import type { Peers } from "../ports/peers.ts";
import type { SessionLog } from "../ports/session-log.ts";
import type { TunnelStreams } from "../ports/tunnels.ts";
import type { WorkQueue } from "../ports/work-queue.ts";
import type { Store } from "../store/store.ts";
import type { SandboxAuthorities } from "./sandbox-authorities.ts";
import type { HandTiming } from "./timing.ts";

export interface HandDeps {
  readonly store: Pick<
    Store,
    | "handAgents"
    | "hands"
    | "executions"
    | "environments"
    | "blobs"
    | "files"
    | "sessions"
    | "skills"
    | "events"
    | "credentials"
    | "work"
  >;
  /** Undefined: memory stores in hands are not kept up to date. */
  readonly memory?: MemorySync | undefined;
  readonly log: Pick<SessionLog, "announce" | "publishPreviews">;
  /** Told of calls that wait for workers. */
  readonly workQueue: () => WorkQueue;
  /** The other replicas of the server. */
  readonly peers: Peers;
  readonly tunnels: () => Pick<TunnelStreams, "fromAgent">;
  /**
   * What hands of sessions with variables trust. Undefined: proxies put no variables in, and hands reach the hosts of variables
   * as they would without them: a way that leads nowhere must not take the place of one that leads there.
   */
  readonly authorities?: Pick<SandboxAuthorities, "of"> | undefined;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly timing: HandTiming;
  /** This replica. */
  readonly replicaId: string;
  /** For what a caller without a workspace makes. */
  readonly defaultWorkspaceId: string;
  /** Driver of environments that name none. */
  readonly defaultDriver: string;
  /** Image of those that name neither; empty or not set for none. */
  readonly defaultImage?: string;
}
