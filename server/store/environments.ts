/** Environments: where hands come from. */
import type { Environment, EnvironmentSpec } from "../../proto/gen/tendon/v1/environment_pb.js";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

export interface EnvironmentStore {
  /** Throws ALREADY_EXISTS for a name in use, REQUEST_ID_REUSED; a repeat returns the first environment as it is now. */
  create(environment: {
    id: string;
    workspaceId: string;
    spec: EnvironmentSpec;
    makeDefault: boolean;
    request: RequestIdClaim;
  }): Promise<Environment>;
  /** Callers check the workspace. */
  find(environmentId: string): Promise<Environment | undefined>;
  /** The one that sessions of the workspace use when they name none. */
  findDefault(workspaceId: string): Promise<Environment | undefined>;
  /** Newest first; without a workspace all of the installation. */
  list(query: {
    workspaceId: string | undefined;
    includeArchived: boolean;
    page: PageRequest;
  }): Promise<Page<Environment>>;
  /**
   * Undefined when there is none in what the caller sees. Throws ENVIRONMENT_ARCHIVED, ALREADY_EXISTS for a name in use,
   * VERSION_MISMATCH when it is neither the expected one nor what it is to be.
   */
  update(change: {
    environmentId: string;
    workspaceId: string | undefined;
    spec: EnvironmentSpec;
    /** Undefined: any. */
    expected: EnvironmentSpec | undefined;
  }): Promise<Environment | undefined>;
  /** Undefined when there is none in what the caller sees; an archived one stays as it is, and is no default any more. */
  archive(environmentId: string, workspaceId: string | undefined): Promise<Environment | undefined>;
  /** False when there is none in what the caller sees. Throws ENVIRONMENT_IN_USE while sessions use it. */
  delete(environmentId: string, workspaceId: string | undefined): Promise<boolean>;
}
