/** Puts the session area together. */

import { ByteBudget } from "../../kit/byte-budget.ts";
import { notFound } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import { bindService } from "../../kit/rpc/service.ts";
import { SessionResourceService } from "../../proto/gen/tendon/v1/session_resource_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { PassPreviews, SessionsForPeers } from "../ports/peers.ts";
import type { SessionCreation } from "../ports/session-creation.ts";
import type { SessionDirectory } from "../ports/session-directory.ts";
import type { SessionLog } from "../ports/session-log.ts";
import { toSessionMessage } from "../ports/session-message.ts";
import type { SessionTrees } from "../ports/session-trees.ts";
import type { BlobStore } from "../store/blobs.ts";
import type { HintListener } from "../store/events.ts";
import type { RetentionStore } from "../store/retention.ts";
import { CheckpointSigner } from "./checkpoint-signer.ts";
import { newSession } from "./creation.ts";
import { GivenFiles } from "./given-files.ts";
import { Hub } from "./hub.ts";
import { announceAppended, createSessionLog } from "./log.ts";
import { ownVaultOf } from "./repository-tokens.ts";
import { type ResourceServiceDeps, ResourceServiceHandler } from "./resource-service.ts";
import { Retention } from "./retention.ts";
import { type SessionServiceDeps, SessionServiceHandler } from "./service.ts";
import { ThreadServiceHandler } from "./thread-service.ts";
import { TreeEndings } from "./tree-endings.ts";
import { TreeRelay } from "./tree-relay.ts";

/** Of large events, files beside events, and lines of imports that are being put together, of all callers. */
const MAX_ASSEMBLY_BYTES = 256 * 1024 * 1024;

export interface SessionAreaDeps
  extends Omit<SessionServiceDeps, "assembly" | "hub" | "endings" | "relay">,
    Pick<ResourceServiceDeps, "sessionResources" | "filesChanged"> {
  /** Not set: one of 256 MiB. */
  readonly assembly?: ByteBudget;
  /** Without one, other replicas' appends are found by asking, within a second. */
  readonly hints: HintListener | undefined;
  readonly replicaId: string;
  /** Previews for watchers of other replicas. Not set: they get none. */
  readonly passPreviews?: PassPreviews;
  readonly isAlone?: () => boolean;
  readonly retention: RetentionStore;
  readonly blobs: BlobStore;
  readonly log: Logger;
}

export interface SessionArea extends Area {
  readonly sessionLog: SessionLog;
  readonly sessionDirectory: SessionDirectory;
  readonly retention: Retention;
  readonly signer: CheckpointSigner;
  readonly forPeers: SessionsForPeers;
  readonly trees: SessionTrees;
  readonly creation: SessionCreation;
}

/** `dispatch` and `hands` are used only once calls come in, so they may be made after this. */
export function createSessionArea(deps: SessionAreaDeps): SessionArea {
  const { events, sessions } = deps;
  const hub = new Hub(deps);
  const assembly = deps.assembly ?? new ByteBudget(MAX_ASSEMBLY_BYTES);
  const endings = new TreeEndings({ ...deps, hub, relay: () => relay });
  const handler = new SessionServiceHandler({ ...deps, assembly, hub, endings, relay: () => relay });
  const stopThread = (threadId: string) => handler.stopThread(threadId);
  const relay = new TreeRelay({ ...deps, hub, stopOrphan: stopThread });
  const stopTree = (sessionId: string) => endings.stop(sessionId);
  const threadHandler = new ThreadServiceHandler({ ...deps, hub, relay, stopThread, stopTree });
  const onSigned = (sessionId: string, position: number) => hub.checkpointed(sessionId, position);
  const signer = new CheckpointSigner({ ...deps, onSigned });
  hub.onAdvance(({ sessionId, checkpointDue }) => {
    if (checkpointDue) signer.due(sessionId);
    else signer.addedTo(sessionId);
  });
  const retention = new Retention({ ...deps, erase: (sessionId) => handler.erase(sessionId) });
  return {
    name: "session",
    services: [
      bindService(SessionService, handler),
      bindService(SessionResourceService, new ResourceServiceHandler(deps)),
      bindService(ThreadService, threadHandler),
    ],
    retention,
    signer,
    parts: [
      hub,
      relay,
      retention,
      signer,
      { name: "append queue", start: async () => {}, stop: () => events.close() },
    ],
    trees: {
      active: (workspaceId) => deps.threads.activeTrees(workspaceId),
      stop: ({ rootSessionId, sessionIds }) => endings.interrupt(rootSessionId, sessionIds),
    },
    creation: {
      async prepared(request, { principal, workspaceId }, use) {
        const given = new GivenFiles(deps.files, assembly);
        try {
          return await use(await newSession(deps, request, principal, workspaceId, given));
        } finally {
          given.close();
        }
      },
      sealTokens: (resources, whose) => ownVaultOf(deps.sealing, resources, whose),
      announce({ session, appended }) {
        if (appended !== undefined) announceAppended(hub, session.sessionId, appended);
      },
    },
    sessionLog: createSessionLog({ events, sessions, hub }),
    sessionDirectory: {
      async get(sessionId) {
        const record = await sessions.find(sessionId);
        if (!record) throw notFound("session", sessionId);
        const { workspaceId, environmentId, slotEnvironmentIds } = record;
        return {
          sessionId,
          workspaceId,
          environmentId,
          slotEnvironmentIds,
          message: toSessionMessage(record),
        };
      },
    },
    forPeers: {
      showPreviews: (sessionId, previews) => hub.showPreviews(sessionId, previews),
      previewed: () => hub.previewed(),
      onPreviewed: (listener) => hub.onPreviewed(listener),
      ended: (sessionId) => hub.endedElsewhere(sessionId),
    },
    drain: (graceMs) => hub.drain(graceMs),
  };
}
