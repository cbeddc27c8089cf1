/** What every call passes, in this order. */

import { status } from "@grpc/grpc-js";
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import { createContextKey } from "../../kit/rpc/context.ts";
import type { CallEnd, RpcInterceptor } from "../../kit/rpc/pipeline.ts";
import { methodPath } from "../../kit/rpc/service.ts";
import { validationInterceptor } from "../../kit/rpc/validation.ts";
import type { Tracing } from "../../kit/trace.ts";
import { actorOf, principalOf } from "../ports/principal.ts";
import { type AuthenticateDeps, type Authenticator, authenticateInterceptor } from "./authenticate.ts";
import { authorise, isOpen } from "./policy.ts";
import { type RateLimit, rateLimitInterceptor } from "./rate-limit.ts";
import { traceInterceptor } from "./trace-calls.ts";

/** Told once a call. */
export interface CallObserver {
  began(method: string): void;
  ended(method: string, code: string, seconds: number): void;
}

export interface InterceptorDeps extends AuthenticateDeps {
  readonly authenticator: Authenticator;
  readonly observer: CallObserver;
  readonly tracing: Tracing;
  readonly rateLimit: RateLimit;
}

/** Request id, log, metrics and trace → who → may they → so often → is the request well formed. */
export function createInterceptors(deps: InterceptorDeps): RpcInterceptor[] {
  return [
    observeInterceptor(deps.observer, deps.clock, deps.log),
    traceInterceptor(deps.tracing),
    authenticateInterceptor(deps, deps.authenticator),
    policyInterceptor(),
    rateLimitInterceptor(deps.rateLimit, deps.clock),
    validationInterceptor(),
  ];
}

const startedKey = createContextKey<number>("started");

function observeInterceptor(observer: CallObserver, clock: Clock, log: Logger): RpcInterceptor {
  return {
    onCall(context) {
      context.set(startedKey, clock.monotonicMs());
      context.setResponseHeader("request-id", context.requestId);
      observer.began(methodPath(context.method));
    },
    onEnd(context, end) {
      const tookMs = clock.monotonicMs() - (context.get(startedKey) ?? clock.monotonicMs());
      observer.ended(methodPath(context.method), status[end.code], tookMs / 1000);
      if (log.isLevelEnabled("debug")) logCall(log, context, end, tookMs);
    },
  };
}

function logCall(log: Logger, context: RpcContext, end: CallEnd, tookMs: number): void {
  const facts = {
    method: methodPath(context.method),
    code: status[end.code],
    tookMs: Math.round(tookMs),
    requestId: context.requestId,
    actor: actorOf(principalOf(context)),
  };
  log.debug(facts, "call");
}

/** Default deny: open methods are those that the table gives to everyone. */
function policyInterceptor(): RpcInterceptor {
  return {
    onCall(context) {
      if (!isOpen(context.method)) authorise(context.method, principalOf(context).kind);
    },
  };
}
