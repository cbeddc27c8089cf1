/** What agents keep in hands beside the workspace: memory stores of the hand's session, and the session's log as a file. */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { notFound, TendonError } from "../../kit/errors.ts";
import type {
  HandMountsSchema,
  ReadSessionLogRequest,
  ReadSessionLogResponse,
  SyncMemoryRequest,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { MemoryAccess } from "../../proto/gen/tendon/v1/memory_pb.js";
import { resourcesOf } from "../ports/session-message.ts";
import type { EventRecord } from "../store/events.ts";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import { environmentOf } from "./hand-messages.ts";

type MountDeps = Pick<HandDeps, "store" | "memory">;

const SLICE_EVENTS = 500;
const SLICE_BYTES = 512 * 1024;
/** Larger payloads are told by their size; what is in the log whole can be read from there. */
const INLINE_BYTES = 256 * 1024;

/** Undefined for none. */
export async function mountsOf(
  { store }: Pick<HandDeps, "store">,
  hand: HandRecord,
): Promise<MessageInitShape<typeof HandMountsSchema> | undefined> {
  if (hand.sessionId === undefined) return undefined;
  const { sessionLog, sessionFiles } = environmentOf(hand);
  const session = await store.sessions.find(hand.sessionId);
  const resources = resourcesOf(session?.resources ?? "[]");
  const hasFiles = resources.some(({ kind }) => kind.case === "file");
  const memoryStores = resources.flatMap(({ kind }) => {
    if (kind.case !== "memoryStore") return [];
    const { memoryStoreId, mountPath: path, access } = kind.value;
    return [{ memoryStoreId, path, readOnly: access === MemoryAccess.READ_ONLY }];
  });
  const uploads = hasFiles || sessionFiles;
  if (memoryStores.length === 0 && !sessionLog && !uploads) return undefined;
  return { memoryStores, sessionLog, uploads, hasFiles, outputs: sessionFiles };
}

export async function syncMemory(deps: MountDeps, request: SyncMemoryRequest, handAgentId: string) {
  const { sessionId } = await ownHand(deps, request, handAgentId);
  if (deps.memory === undefined)
    throw new TendonError("NOT_CONFIGURED", "this server keeps no memory stores");
  return deps.memory.sync(sessionId, request);
}

export async function* readSessionLog(
  deps: MountDeps,
  request: ReadSessionLogRequest,
  handAgentId: string,
): AsyncGenerator<Pick<ReadSessionLogResponse, "sessionId" | "lines" | "position">> {
  const { hand, sessionId } = await ownHand(deps, request, handAgentId);
  if (!environmentOf(hand).sessionLog)
    throw new TendonError("ROLE_NOT_ALLOWED", "the hand's environment does not ask for the session's log");
  let afterPosition = Number(request.afterPosition);
  for (let hasMore = true; hasMore; ) {
    const slice = await deps.store.events.read({
      sessionId,
      afterPosition,
      limit: SLICE_EVENTS,
      maxBytes: SLICE_BYTES,
      inlineLimitBytes: INLINE_BYTES,
      withInternal: false,
    });
    const last = slice.events.at(-1);
    // Also when there is nothing new: the agent learns whose log it is.
    const lines = Buffer.from(slice.events.map((event) => `${lineOf(event)}\n`).join(""), "utf8");
    afterPosition = last?.position ?? afterPosition;
    hasMore = slice.hasMore && last !== undefined;
    yield { sessionId, lines, position: BigInt(afterPosition) };
  }
}

export async function ownHand(
  { store }: Pick<HandDeps, "store">,
  { handId, ownerNumber }: { handId: string; ownerNumber: bigint },
  handAgentId: string,
): Promise<{ hand: HandRecord; sessionId: string }> {
  const hand = await store.hands.find(handId);
  if (hand?.handAgentId !== handAgentId || hand.sessionId === undefined)
    throw notFound("hand of a session on this hand agent", handId);
  if (hand.state === "lost" || hand.state === "released") throw notFound("living hand of a session", handId);
  if (ownerNumber < BigInt(hand.ownerNumber))
    throw new TendonError("HAND_NOT_READY", `hand "${handId}" belongs to another session now`);
  return { hand, sessionId: hand.sessionId };
}

/** One line whatever white space the payload came with; else its text stays byte for byte. */
function lineOf(event: EventRecord): string {
  const facts = {
    position: event.position,
    id: event.id,
    type: event.type,
    ...(event.threadId !== "" && { thread_id: event.threadId }),
    created_at: event.createdAt,
  };
  const head = JSON.stringify(facts).slice(0, -1);
  const { payload, payloadOmitted } = event;
  if (payload === undefined)
    return `${head},"payload_omitted":{"bytes":${payloadOmitted?.sizeBytes ?? 0},"sha256":"${payloadOmitted?.sha256 ?? ""}"}}`;
  const text = /[\n\r]/.test(payload) ? JSON.stringify(JSON.parse(payload)) : payload;
  return `${head},"payload":${text === "" ? "{}" : text}}`;
}
