/** Refusals that several parts give in the same words. */
import { TendonError } from "../../kit/errors.ts";

export function leaseFenced(newestEpoch: string): TendonError {
  return new TendonError(
    "LEASE_FENCED",
    `the lease is not the session's newest any more; its newest epoch is ${newestEpoch}`,
    { epoch: newestEpoch },
  );
}

export function sessionArchived(sessionId: string): TendonError {
  return new TendonError("SESSION_ARCHIVED", `the session "${sessionId}" is archived`, {
    session_id: sessionId,
  });
}

export function deploymentArchived(deploymentId: string): TendonError {
  return new TendonError("DEPLOYMENT_ARCHIVED", `the deployment "${deploymentId}" is archived`, {
    id: deploymentId,
  });
}

export function storeArchived(memoryStoreId: string): TendonError {
  return new TendonError(
    "MEMORY_STORE_ARCHIVED",
    `the memory store "${memoryStoreId}" is archived and takes no changes`,
    { id: memoryStoreId },
  );
}

export function outcomeActive(outcomeId: string): TendonError {
  return new TendonError(
    "OUTCOME_ACTIVE",
    `the session works towards the outcome "${outcomeId}"; wait for the end of its evaluation, or interrupt it`,
    { outcome_id: outcomeId },
  );
}
