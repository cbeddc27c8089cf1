/** Puts the parts of work distribution together. */
import type { HarnessDispatch } from "../ports/harness-dispatch.ts";
import type { HarnessPresence } from "../ports/harness-presence.ts";
import { Dispatcher, type DispatcherDeps } from "./dispatcher.ts";
import { HarnessServiceHandler } from "./service.ts";

export interface HarnessArea {
  readonly service: HarnessServiceHandler;
  readonly dispatch: HarnessDispatch;
  start(): void;
  /** Tells harnesses to attach elsewhere. */
  drain(graceMs: number): Promise<void>;
  stop(): Promise<void>;
}

export function createHarnessArea(
  deps: DispatcherDeps & { readonly presence: HarnessPresence },
): HarnessArea {
  const dispatcher = new Dispatcher(deps);
  const service = new HarnessServiceHandler({ ...deps, dispatcher });
  return {
    service,
    start: () => dispatcher.start(),
    drain: (graceMs) => service.drain(graceMs),
    stop: () => dispatcher.stop(),
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
