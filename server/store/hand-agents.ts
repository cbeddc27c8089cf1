/** The programs that host hands: who they are, and what their newest greeting said. All times are the database's. */
import { createHash } from "node:crypto";

import type { Page, PageRequest } from "./page.ts";

/** A tool as a driver describes it; `inputSchema` is JSON text. */
export interface ToolRecord {
  readonly name: string;
  readonly description: string;
  readonly inputSchema: string;
}

/** A tool list as it is kept. */
export function toolListText(tools: readonly ToolRecord[]): string {
  return JSON.stringify(
    tools.map(({ name, description, inputSchema }) => ({ name, description, inputSchema })),
  );
}

/** A list is kept once, under the SHA-256 of its text, lower-case hex. */
export function digestOfTools(tools: readonly ToolRecord[]): string {
  return createHash("sha256").update(toolListText(tools)).digest("hex");
}

export interface DriverRecord {
  readonly name: string;
  readonly available: boolean;
  readonly detail: string;
  readonly capabilities: readonly string[];
  /** Its tool list, by digest. */
  readonly toolsDigest: string;
  /** Images that the machine has. */
  readonly images?: readonly string[];
}

/** What a machine has; 0 for what is not known. */
export interface MachineRecord {
  readonly cpuMillis: number;
  readonly memoryBytes: number;
  readonly memoryFreeBytes: number;
  readonly diskBytes: number;
  readonly diskFreeBytes: number;
}

export interface HandAgentRecord {
  readonly handAgentId: string;
  readonly workspaceId: string;
  readonly pool: string;
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly publicKey: Uint8Array;
  readonly enrolledAt: Date;
  readonly revokedAt: Date | undefined;
  readonly generation: number;
  /** Replica that holds its connection. */
  readonly replicaId: string | undefined;
  readonly journalId: string | undefined;
  readonly build: string;
  readonly drivers: readonly DriverRecord[];
  readonly capacityHands: number;
  /** Hands that it hosts or is about to. */
  readonly hands: number;
  readonly lastSeenAt: Date | undefined;
  /** Undefined when it never said. */
  readonly machine: MachineRecord | undefined;
  /** A replica holds its connection and has heard from it lately. */
  readonly online: boolean;
  /** A second process with its identity was refused lately. Known of agents that were listed. */
  readonly duplicateSeenAt?: Date | undefined;
}

/** What a greeting says. */
export interface GreetingRecord {
  readonly journalId: string;
  readonly build: string;
  readonly drivers: readonly DriverRecord[];
  /** Tool lists of the drivers, by digest. */
  readonly toolLists: ReadonlyMap<string, readonly ToolRecord[]>;
  readonly labels: Readonly<Record<string, string>>;
  readonly capacityHands: number;
  readonly machine: MachineRecord | undefined;
}

export interface HandAgentStore {
  /**
   * Exchanges a join token for an identity, with its entry in the audit log. The same public key again gets the same
   * agent and does not use the token up. JOIN_TOKEN_INVALID, HAND_AGENT_REVOKED.
   */
  enroll(request: {
    tokenHash: Uint8Array;
    publicKey: Uint8Array;
    name: string;
    labels: Readonly<Record<string, string>>;
  }): Promise<{ handAgentId: string; workspaceId: string; pool: string; installationId: string }>;
  find(handAgentId: string): Promise<HandAgentRecord | undefined>;
  /** Newest first; without a workspace all of the installation. */
  list(query: {
    workspaceId: string | undefined;
    includeRevoked: boolean;
    page: PageRequest;
  }): Promise<Page<HandAgentRecord>>;
  /** Agents of the workspace that are not revoked, for placement. An empty pool means any. */
  candidates(workspaceId: string, pool: string): Promise<HandAgentRecord[]>;
  /**
   * A new connection stands: its generation is one above the last. HAND_AGENT_REVOKED, NOT_FOUND. With `yields`
   * HAND_AGENT_DUPLICATED while the agent is online on another connection.
   */
  connect(request: {
    handAgentId: string;
    replicaId: string;
    greeting: GreetingRecord;
    yields: boolean;
  }): Promise<{ generation: number; installationId: string }>;
  /** Notes in the audit log that a second process with the agent's identity was refused, at most once in ten minutes. */
  noteDuplicate(handAgentId: string): Promise<void>;
  /** The images of one driver now, as said on the connection of this generation. */
  noteImages(request: {
    handAgentId: string;
    generation: number;
    driver: string;
    images: readonly string[];
  }): Promise<void>;
  /** What the agent's machine has now, as said on the connection of this generation. */
  noteMachine(request: { handAgentId: string; generation: number; machine: MachineRecord }): Promise<void>;
  /** The connection of this generation ended; a newer one is left alone (H3). */
  disconnect(request: { handAgentId: string; generation: number }): Promise<void>;
  /**
   * Notes that these agents were heard from on these connections; gives the ids of those that have been revoked, and of
   * those that have a newer connection by now.
   */
  touch(
    connections: readonly { readonly handAgentId: string; readonly generation: number }[],
  ): Promise<{ revoked: string[]; moved: string[] }>;
  /** A tool list by its digest. */
  toolList(digest: string): Promise<readonly ToolRecord[] | undefined>;
}
