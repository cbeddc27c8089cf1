/** The Claude Agent SDK, which is installed only where its loop is wanted. The one file that loads it. */
import { createRequire } from "node:module";

export type {
  Options,
  Query,
  SDKMessage,
  SDKUserMessage,
  SessionKey,
  SessionStore,
  SessionStoreEntry,
  SpawnOptions,
} from "@anthropic-ai/claude-agent-sdk";

export type AgentSdk = Pick<typeof import("@anthropic-ai/claude-agent-sdk"), "query">;

const PACKAGE = "@anthropic-ai/claude-agent-sdk";
/** What the loop is tested with. */
export const TESTED_VERSION = "0.3.332";

export class SdkMissing extends Error {
  override readonly name = "SdkMissing";

  constructor() {
    super(
      `the loop "claude-code" needs the package ${PACKAGE} where the harness is: npm install ${PACKAGE}@${TESTED_VERSION}`,
    );
  }
}

export function isSdkInstalled(): boolean {
  try {
    createRequire(import.meta.url).resolve(PACKAGE);
    return true;
  } catch {
    return false;
  }
}

/** Rejects with SdkMissing where it is not installed. */
export async function loadSdk(): Promise<AgentSdk> {
  if (!isSdkInstalled()) throw new SdkMissing();
  return import("@anthropic-ai/claude-agent-sdk");
}
