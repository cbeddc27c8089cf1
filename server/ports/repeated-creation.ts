/** Creations that are asked for again when what they named is gone. */
import { isTendonError } from "../../kit/errors.ts";
import type { RequestIdClaim, RequestIdStore } from "../store/request-ids.ts";

/**
 * What `make` makes; where that is refused, what the same request has made before, by its id: what it named may be gone by
 * now, or archived, so that a repeat may be no request that could be carried out. The refusal stands where there is no such.
 */
export async function madeOnce<T>(
  requestIds: Pick<RequestIdStore, "madeBy">,
  claim: RequestIdClaim & { readonly workspaceId: string; readonly scope: string },
  make: () => Promise<T>,
  find: (id: string) => Promise<T | undefined>,
): Promise<T> {
  try {
    return await make();
  } catch (error) {
    if (!isTendonError(error) || claim.requestId.includes("\0")) throw error;
    const id = await requestIds.madeBy(claim);
    const first = id === undefined ? undefined : await find(id);
    if (first === undefined) throw error;
    return first;
  }
}
