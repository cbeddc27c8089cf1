/** What the other areas may ask of the part that knows memory stores. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import type {
  SyncMemoryRequest,
  SyncMemoryResponseSchema,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { AttachedMemoryStore, MemoryStoreInput } from "../../proto/gen/tendon/v1/memory_pb.js";

export interface MemoryAttachments {
  /**
   * What a new session is given of stores, with their names of now. `field` is where they stand in the request.
   * NOT_FOUND, MEMORY_STORE_ARCHIVED, INVALID_FIELD for too many of them or one that is named twice.
   */
  attach(
    inputs: readonly { readonly store: MemoryStoreInput; readonly field: string }[],
    workspaceId: string,
  ): Promise<AttachedMemoryStore[]>;
}

export interface MemorySync {
  /** In the name of the session, which must have been given the store. Whose hand it is has been checked. NOT_FOUND. */
  sync(
    sessionId: string,
    request: SyncMemoryRequest,
  ): Promise<MessageInitShape<typeof SyncMemoryResponseSchema>>;
}
