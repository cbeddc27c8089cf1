/** Agents and their versions. */
import type { Agent, AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";

export interface AgentStore {
  /** Throws REQUEST_ID_REUSED; a repeat returns the first agent in its latest version. */
  create(agent: {
    id: string;
    workspaceId: string;
    spec: AgentSpec;
    request: RequestIdClaim;
  }): Promise<Agent>;
  /** Version 0 is the latest. Undefined when there is no such agent or version; callers check the workspace. */
  find(agentId: string, version: number): Promise<Agent | undefined>;
  /** Each in its latest version, newest agent first; without a workspace all of the installation. */
  list(query: {
    workspaceId: string | undefined;
    includeArchived: boolean;
    createdAtOrAfter: Date | undefined;
    createdBefore: Date | undefined;
    page: PageRequest;
  }): Promise<Page<Agent>>;
  /** Newest version first. */
  listVersions(query: { agentId: string; page: PageRequest }): Promise<Page<Agent>>;
  /**
   * A new version, unless nothing differs. Undefined when there is no such agent in what the caller sees. Throws
   * AGENT_ARCHIVED, VERSION_MISMATCH (metadata `version`) unless `expectedVersion` is 0 or the latest.
   */
  update(change: {
    agentId: string;
    workspaceId: string | undefined;
    spec: AgentSpec;
    expectedVersion: number;
  }): Promise<Agent | undefined>;
  /** With its deployments. Undefined when there is no such agent in what the caller sees; an archived one stays as it is. */
  archive(agentId: string, workspaceId: string | undefined): Promise<Agent | undefined>;
}
