/** Puts the parts of work distribution together. */
import { bindService } from "../../kit/rpc/service.ts";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { HarnessDispatch } from "../ports/harness-dispatch.ts";
import type { ReplicaStore } from "../store/replicas.ts";
import { Dispatcher, type DispatcherDeps } from "./dispatcher.ts";
import { HarnessServiceHandler } from "./service.ts";

export interface HarnessArea extends Area {
  readonly dispatch: HarnessDispatch;
  /** A holder on this replica, if there is one, is told that its lease is over. */
  readonly lose: (sessionId: string, detail: string) => void;
}

export function createHarnessArea(deps: DispatcherDeps & { readonly replicas: ReplicaStore }): HarnessArea {
  const dispatcher = new Dispatcher(deps);
  const service = new HarnessServiceHandler({ ...deps, dispatcher });
  return {
    name: "harness",
    services: [bindService(HarnessService, service)],
    parts: [dispatcher],
    drain: (graceMs) => service.drain(graceMs),
    lose: (sessionId, detail) => dispatcher.lose(sessionId, detail),
    dispatch: {
      async wake(sessionId) {
        const answer = await deps.leases.wake(sessionId);
        if (answer.hasWork) dispatcher.look();
        return answer;
      },
      async withdraw(sessionId, detail) {
        await deps.leases.withdraw(sessionId);
        dispatcher.lose(sessionId, detail);
      },
    },
  };
}
