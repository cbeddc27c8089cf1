/** Puts together what runs web tools. */
import type { Clock } from "../../kit/clock.ts";
import type { Logger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { Tracing } from "../../kit/trace.ts";
import type { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import type { OutboundFetch } from "../outbound/fetch.ts";
import type { SessionTokenKeys } from "../session-token.ts";
import { WebEndpoint } from "./endpoint.ts";
import type { SearchProvider } from "./search-web.ts";
import { WebCalls } from "./web-calls.ts";

export interface WebDeps {
  readonly client: Client<typeof CredentialService>;
  readonly keys: SessionTokenKeys;
  /** To addresses of the public internet alone. Undefined: pages are not read here. */
  readonly fetchPublic: OutboundFetch | undefined;
  /** By the rules for the platform's own requests. */
  readonly fetch: OutboundFetch;
  /** Undefined: nothing is searched here. */
  readonly provider: SearchProvider | undefined;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tracing: Tracing;
}

export interface Web {
  readonly handle: WebEndpoint["handle"];
  /** The session ended: what runs for it ends. */
  forgetSession(sessionId: string): void;
}

export function createWeb({ client, keys, ...deps }: WebDeps): Web {
  const calls = new WebCalls({ ...deps, credentials: client });
  const endpoint = new WebEndpoint({ keys, calls, log: deps.log, tracing: deps.tracing });
  return {
    handle: (request, response, path) => endpoint.handle(request, response, path),
    forgetSession: (sessionId) => calls.forgetSession(sessionId),
  };
}
