/** Puts the vault area together. */
import { TendonError } from "../../kit/errors.ts";
import { bindService, type ServiceImplementation } from "../../kit/rpc/service.ts";
import { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { SecretSealing } from "../ports/secret-sealing.ts";
import { type CredentialServiceDeps, CredentialUses } from "./credential-service.ts";
import { Resealing, type ResealingDeps } from "./resealing.ts";
import { Sealing, type SealingDeps } from "./sealing.ts";
import { type VaultDeps, VaultServiceHandler } from "./service.ts";

export type VaultAreaDeps = Omit<VaultDeps, "sealing"> &
  Omit<ResealingDeps, "sealing" | "audit"> &
  SealingDeps &
  CredentialServiceDeps & { readonly calls?: RecordedCalls };

/** The record of calls of MCP servers and of web tools. */
export type RecordedCalls = Pick<
  ServiceImplementation<typeof CredentialService>,
  "resolveMcpServer" | "beginCall" | "finishCall" | "beginWebCall" | "finishWebCall" | "finishLargeWebCall"
>;

export interface VaultArea extends Area {
  readonly sealing: SecretSealing;
}

export function createVaultArea(deps: VaultAreaDeps): VaultArea {
  const sealing = new Sealing(deps);
  const { calls = NO_CALLS } = deps;
  const uses = new CredentialUses(deps);
  const credentials: ServiceImplementation<typeof CredentialService> = {
    resolveCredential: (request, context) => uses.resolveCredential(request, context),
    storeRefreshed: (request, context) => uses.storeRefreshed(request, context),
    claimRefresh: (request, context) => uses.claimRefresh(request, context),
    endRefresh: (request, context) => uses.endRefresh(request, context),
    recordUses: (request, context) => uses.recordUses(request, context),
    resolveMcpServer: (request, context) => calls.resolveMcpServer(request, context),
    beginCall: (request, context) => calls.beginCall(request, context),
    finishCall: (request, context) => calls.finishCall(request, context),
    beginWebCall: (request, context) => calls.beginWebCall(request, context),
    finishWebCall: (request, context) => calls.finishWebCall(request, context),
    finishLargeWebCall: (requests, context) => calls.finishLargeWebCall(requests, context),
  };
  return {
    name: "vault",
    services: [
      bindService(VaultService, new VaultServiceHandler({ ...deps, sealing })),
      bindService(CredentialService, credentials),
    ],
    parts: [new Resealing({ ...deps, sealing })],
    sealing,
  };
}

const NO_CALLS: RecordedCalls = {
  resolveMcpServer: () => Promise.reject(notBuilt()),
  beginCall: () => Promise.reject(notBuilt()),
  finishCall: () => Promise.reject(notBuilt()),
  beginWebCall: () => Promise.reject(notBuilt()),
  finishWebCall: () => Promise.reject(notBuilt()),
  finishLargeWebCall: () => Promise.reject(notBuilt()),
};

function notBuilt(): TendonError {
  return new TendonError("NOT_IMPLEMENTED", "this server records no calls");
}
