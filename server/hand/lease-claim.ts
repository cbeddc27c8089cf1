/** Who must show the lease of a session. */
import { invalidField, TendonError } from "../../kit/errors.ts";
import type { Principal } from "../ports/principal.ts";
import type { LeaseClaim } from "../store/hands.ts";

/** A harness writes to a session only by its lease; the others may do without. */
export function leaseOf(
  principal: Principal,
  proof: { leaseId: string; epoch: bigint } | undefined,
): LeaseClaim | undefined {
  if (proof !== undefined) return { leaseId: proof.leaseId, epoch: proof.epoch };
  if (principal.kind === "harness") throw invalidField("lease", "a harness has to show the session's lease");
  return undefined;
}

export function needsSession(): TendonError {
  return new TendonError("ROLE_NOT_ALLOWED", "a harness uses hands only for sessions");
}
