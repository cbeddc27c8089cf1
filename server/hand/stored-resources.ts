/** Stored files that hands are given: there when the hand is asked for, and read by the agent that makes it. */
import { invalidField, notFound, type TendonError } from "../../kit/errors.ts";
import type {
  ReadResourceRequest,
  ReadResourceResponse,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandResource } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { BlobStore } from "../store/blobs.ts";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import { resourcesOf } from "./hand-messages.ts";
import { skillFiles } from "./skill-files.ts";

type Blobs = Pick<BlobStore, "find" | "read">;

/** INVALID_FIELD for the first that the workspace does not have. */
export async function missingStoredFile(
  blobs: Blobs,
  workspaceId: string,
  resources: readonly HandResource[],
): Promise<TendonError | undefined> {
  for (const [index, { kind }] of resources.entries()) {
    if (kind.case !== "storedFile") continue;
    const { sha256 } = kind.value;
    if ((await blobs.find(workspaceId, sha256)) === undefined)
      return invalidField(`resources[${index}].stored_file.sha256`, `the workspace has no file "${sha256}"`);
  }
  return undefined;
}

/** Only what a hand that this agent is to make was given. */
export async function* readResource(
  deps: Pick<HandDeps, "store">,
  { handId, sha256 }: ReadResourceRequest,
  handAgentId: string,
): AsyncGenerator<Pick<ReadResourceResponse, "chunk">> {
  const { store } = deps;
  const hand = await store.hands.find(handId);
  const isOwn = hand?.handAgentId === handAgentId && hand.state === "provisioning";
  if (!isOwn || !(await isGiven(deps, hand, sha256)))
    throw notFound("stored file of a hand that is being made", sha256);
  for await (const chunk of store.blobs.read({ workspaceId: hand.workspaceId, sha256 })) yield { chunk };
}

async function isGiven(deps: Pick<HandDeps, "store">, hand: HandRecord, sha256: string): Promise<boolean> {
  const isIt = ({ kind }: HandResource) => kind.case === "storedFile" && kind.value.sha256 === sha256;
  return resourcesOf(hand).some(isIt) || (await skillFiles(deps, hand)).some(isIt);
}
