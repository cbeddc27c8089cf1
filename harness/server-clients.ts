/** The services that a harness calls, all over one connection. */
import type { Client } from "../kit/rpc/client.ts";
import type { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import type { HarnessService } from "../proto/gen/tendon/v1/harness_service_pb.js";
import type { MemoryService } from "../proto/gen/tendon/v1/memory_service_pb.js";
import type { SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import type { ThreadService } from "../proto/gen/tendon/v1/thread_service_pb.js";

export interface ServerClients {
  readonly harness: Client<typeof HarnessService>;
  readonly sessions: Client<typeof SessionService>;
  readonly hands: Client<typeof HandService>;
  readonly memory: Client<typeof MemoryService>;
  readonly threads: Client<typeof ThreadService>;
}
